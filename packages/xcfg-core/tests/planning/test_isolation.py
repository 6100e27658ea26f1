from __future__ import annotations

import msgspec
import pytest
from xcfg.errors import ConfigError
from xcfg.planning.isolation import changes, check_isolation, undeclared_changes
from xcfg.schema.operators import OperatorChoice


@pytest.fixture
def pair(make_plan, vary):
    return make_plan(interventions=vary(("rollout.dtype", ["float32"]))).cases


def test_a_planned_case_differs_in_what_it_declares(pair):
    baseline, case = pair
    assert changes(baseline, case) == ["rollout.dtype@rollout", "rollout.dtype@training"]
    assert undeclared_changes(baseline, case, {"rollout.dtype"}) == []
    check_isolation(baseline, case, {"rollout.dtype"})


EAGER = ["rollout.enforce_eager@rollout", "rollout.enforce_eager@training"]
X = OperatorChoice(backend="x")
SMUGGLED = [
    ({"knobs": {"batch.size": 4}}, ["batch.size@rollout", "batch.size@training"]),
    ({"knobs": {"batch.size@rollout": 4}}, ["batch.size@rollout"]),
    ({"knobs": {"rollout.enforce_eager": 1}}, EAGER),
    ({"knobs": {"extra.knob": 1}}, ["extra.knob@rollout", "extra.knob@training"]),
    ({"runtime_options": {"rollout": {"seed": 1}}}, ["runtime_options.rollout"]),
    (
        {"operators": {"selected_logprob": {"rollout": X, "training": OperatorChoice(backend="native")}}},
        ["operators.selected_logprob.rollout"],
    ),
]


@pytest.mark.parametrize(("change", "found"), SMUGGLED)
def test_a_change_that_nobody_declared_is_refused(change, found, pair):
    baseline, case = pair
    merged = {name: getattr(case, name) | value for name, value in change.items()}
    other = msgspec.structs.replace(case, **merged)
    assert undeclared_changes(baseline, other, {"rollout.dtype"}) == found
    with pytest.raises(ConfigError, match="UNDECLARED_CHANGE"):
        check_isolation(baseline, other, {"rollout.dtype"})


def test_a_missing_knob_is_a_change(pair):
    baseline, case = pair
    knobs = {path: value for path, value in case.knobs.items() if path != "batch.size"}
    other = msgspec.structs.replace(case, knobs=knobs)
    assert undeclared_changes(baseline, other, {"rollout.dtype"}) == [
        "batch.size@rollout",
        "batch.size@training",
    ]


def test_a_declared_change_that_is_not_there_is_refused(pair):
    baseline, case = pair
    other = msgspec.structs.replace(baseline, delta=case.delta, label="no change")
    with pytest.raises(ConfigError, match="MISSING_CHANGE"):
        check_isolation(baseline, other, {"rollout.dtype"})


def test_the_operator_shortcut_covers_its_operators_and_no_others(make_plan, vary):
    baseline, both, one = make_plan(
        interventions=vary(("logp.backend", ["x"]), ("logp.backend", ["x"], "rollout"))
    ).cases
    assert "operators.selected_logprob.training" in changes(baseline, both)
    assert undeclared_changes(baseline, both, {"logp.backend"}) == []
    assert undeclared_changes(baseline, both, {"logp.backend@rollout"}) == [
        "logp.backend@training",
        "operators.selected_logprob.training",
    ]
    assert undeclared_changes(baseline, one, {"logp.backend@rollout"}) == []


def test_the_planner_itself_is_validated(make_plan, vary, monkeypatch):
    from xcfg.planning import plan as module

    write = module.write_knobs

    def careless(effective, plain):
        written = write(effective, plain)
        return written | {"batch.size": 4} if written["rollout.dtype"] == "float32" else written

    monkeypatch.setattr(module, "write_knobs", careless)
    with pytest.raises(ConfigError, match=r"UNDECLARED_CHANGE.*batch\.size@rollout"):
        make_plan(interventions=vary(("rollout.dtype", ["float32"])))

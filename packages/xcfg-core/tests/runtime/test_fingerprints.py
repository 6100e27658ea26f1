"""A worker that lives on into a score with another fingerprint would score with the wrong engine."""

from __future__ import annotations

import pytest
from xcfg.runtime.fingerprints import fingerprints
from xcfg.schema.codec import evolve, plain
from xcfg.schema.operators import OperatorBinding, ResolutionDecision
from xcfg.schema.runtime import Placement

OF = {
    "request": set(),
    "engine-construction": {"construction"},
    "process-start": {"process"},
    "build": {"build"},
}
BINDING = OperatorBinding(
    operation="selected_logprob",
    side="training",
    requested="native",
    backend_id="torch.log_softmax",
    factory="m:f",
    options={"chunk": 4},
    distribution="d",
    distribution_version="1",
    version="1",
    build_fingerprint="b",
    source_digest="s",
)


@pytest.fixture
def prints(knob):
    definitions = {name: knob(name, lifecycle=name) for name in OF}
    definitions |= {f"{name}+": knob(f"{name}+", lifecycle=name, distributed=True) for name in OF if name != "request"}
    base = {
        "runtime": "mini",
        "side": "training",
        "knobs": dict.fromkeys(definitions, 1),
        "definitions": definitions,
        "options": {"engine": {"x": 1}},
        "checkpoint": "c",
        "placement": Placement(),
        "bindings": {"selected_logprob": BINDING},
    }
    return lambda **changes: fingerprints(**(base | changes)), base


def changed(prints, **changes) -> set[str]:
    make, _ = prints
    before, after = plain(make()), plain(make(**changes))
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize("value", [2, True, "1", None, 1.5])
@pytest.mark.parametrize("lifecycle", OF)
def test_a_knob_changes_the_fingerprint_of_its_lifecycle_and_no_other(lifecycle, value, prints):
    knobs = prints[1]["knobs"] | {lifecycle: value}
    assert changed(prints, knobs=knobs) == OF[lifecycle]


@pytest.mark.parametrize("lifecycle", [name for name in OF if name != "request"])
def test_a_distributed_knob_changes_the_distributed_context_too(lifecycle, prints):
    knobs = prints[1]["knobs"] | {f"{lifecycle}+": 2}
    assert changed(prints, knobs=knobs) == OF[lifecycle] | {"distributed"}


@pytest.mark.parametrize("lifecycle", OF)
def test_a_knob_that_is_left_out_is_another_setting(lifecycle, prints):
    knobs = {path: value for path, value in prints[1]["knobs"].items() if path != lifecycle}
    assert changed(prints, knobs=knobs) == OF[lifecycle]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("runtime", "other", {"construction"}),
        ("side", "rollout", {"construction"}),
        ("options", {"engine": {"x": 2}}, {"construction"}),
        ("options", {"engine": {"x": True}}, {"construction"}),
        ("checkpoint", "d", {"construction"}),
        ("placement", Placement(world_size=2), {"distributed"}),
        ("placement", Placement(processes=2), {"distributed"}),
        ("placement", Placement(env={"OMP_NUM_THREADS": "2"}), {"process"}),
        ("placement", Placement(command=("torchrun",)), {"process"}),
        ("placement", Placement(devices=("cuda:1",)), {"process"}),
        ("placement", Placement(devices=("cuda:0",)), {"process"}),
        ("bindings", {}, {"bindings"}),
        ("bindings", {"gemm": BINDING}, {"bindings"}),
    ],
)
def test_everything_else_that_makes_an_engine_another_one(field, value, expected, prints):
    assert changed(prints, **{field: value}) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"backend_id": "triton"},
        {"options": {"chunk": 8}},
        {"version": "2"},
        {"distribution_version": "2"},
        {"build_fingerprint": "sm90"},
        {"source_digest": "t"},
    ],
)
def test_a_binding_is_what_decides_its_numbers(change, prints):
    assert changed(prints, bindings={"selected_logprob": evolve(BINDING, **change)}) == {"bindings"}


@pytest.mark.parametrize(
    "change", [{"requested": "production"}, {"trace": (ResolutionDecision(check="device", ok=True, detail=""),)}]
)
def test_how_a_binding_was_found_does_not_matter(change, prints):
    assert changed(prints, bindings={"selected_logprob": evolve(BINDING, **change)}) == set()


def test_the_order_in_which_things_were_written_does_not_matter(prints):
    make, base = prints
    turned = {name: dict(reversed(base[name].items())) for name in ("knobs", "definitions", "options")}
    assert make(**turned) == make()

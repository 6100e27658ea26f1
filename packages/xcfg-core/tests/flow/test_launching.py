"""Where an engine of one side would run."""

from __future__ import annotations

import pytest
from xcfg.flow.checkpoints import Checkpoint
from xcfg.flow.launching import MAX_PROCESSES, launch_spec, place
from xcfg.flow.prepare import _derived
from xcfg.schema.operators import OperatorChoice
from xcfg.schema.plan import ExperimentCase
from xcfg.schema.runtime import Placement, RuntimeDescriptor

CROWD = MAX_PROCESSES


def crowded(request):
    return Placement(world_size=CROWD, processes=CROWD)


def test_a_number_of_processes_that_no_machine_bears_is_unsupported(monkeypatch):
    descriptor = RuntimeDescriptor(
        name="r", summary="s", adapter="a:b", placement=f"{__name__}:crowded", arms={"training": ("training",)}
    )
    monkeypatch.setattr("xcfg.flow.launching.resolve", lambda *_, **__: crowded)
    assert place(descriptor, "training", {}, {}, ("cpu",)).unsupported == {}
    monkeypatch.setattr(f"{__name__}.CROWD", MAX_PROCESSES + 1)
    reasons = place(descriptor, "training", {}, {}, ("cpu",)).unsupported
    assert set(reasons) == {"processes.training"} and str(MAX_PROCESSES + 1) in reasons["processes.training"]


@pytest.mark.parametrize(
    ("head", "known", "beside", "asked"),
    [
        ("my.linear_logp", True, "native", False),
        ("native", True, "native", True),
        ("my.linear_logp", False, "native", True),
        ("my.linear_logp", True, "my.logp", True),
        (None, True, "native", True),
    ],
)
def test_the_engine_s_own_log_probability_is_not_asked_for_where_another_operator_makes_it(head, known, beside, asked):
    """Failing means that a log probability which nobody computed counts as applied, or that one which was asked for
    beside the other is forgotten."""
    descriptor = RuntimeDescriptor(
        name="r",
        summary="s",
        adapter="a:b",
        placement="a:b",
        arms={"training": ("training",)},
        operators=("selected_logprob", *(["linear_selected_logprob"] if known else [])),
    )
    choices = {"selected_logprob": {"training": OperatorChoice(backend=beside)}}
    if head is not None:
        choices["linear_selected_logprob"] = {"training": OperatorChoice(backend=head)}
    case = ExperimentCase(case_id="", label="", knobs={}, delta={}, operators=choices)
    knobs = {"logp.backend": beside, "training.compute_dtype": "bfloat16"}
    found = _derived(knobs, case, "training", descriptor)
    assert found == (knobs if asked else {"training.compute_dtype": "bfloat16"})


@pytest.mark.parametrize(
    ("backend", "known", "value", "asked"),
    [
        ("torch.attention_float32", True, "model_default", False),
        ("native", True, "model_default", True),
        ("production", True, "model_default", True),
        ("torch.attention_float32", False, "model_default", True),
        ("torch.attention_float32", True, "eager", True),
    ],
)
def test_the_model_s_own_attention_is_not_asked_for_beside_an_injected_one(backend, known, value, asked):
    """Failing means that one of two settings of the same thing counts as applied while the other one runs."""
    operators = ("selected_logprob", *(["attention"] if known else []))
    descriptor = RuntimeDescriptor(
        name="r",
        summary="s",
        adapter="a:b",
        placement="a:b",
        arms={"rollout": ("rollout_prefill",)},
        operators=operators,
    )
    choices = {"attention": {"rollout": OperatorChoice(backend=backend), "training": OperatorChoice(backend="native")}}
    case = ExperimentCase(case_id="", label="", knobs={}, delta={}, operators=choices)
    knobs = {"rollout.attention_backend": value, "rollout.dtype": "bfloat16"}
    found = _derived(knobs, case, "rollout", descriptor)
    assert found == (knobs if asked else {"rollout.dtype": "bfloat16"})
    assert _derived(knobs, case, "training", descriptor) == knobs


@pytest.mark.parametrize(
    ("budget", "machine", "limit"),
    [(None, 4.0, 4 << 30), (1 << 30, 4.0, 1 << 30), (8 << 30, 4.0, 4 << 30), (7, None, 7)],
)
def test_an_engine_is_told_how_much_memory_there_is(budget, machine, limit, monkeypatch):
    """Failing means that an engine is built which cannot fit, and that another worker is built for another budget."""
    monkeypatch.setattr("xcfg.flow.launching.memory_gib", lambda: machine)
    descriptor = RuntimeDescriptor(name="r", summary="s", adapter="a:b", placement="a:b", arms={})
    checkpoint = Checkpoint(uri="builtin:none", folder=None, digest="d")
    given = {"knobs": {}, "options": {}, "placement": Placement(), "bindings": {}, "definitions": {}}
    made = launch_spec(descriptor, "rollout", checkpoint=checkpoint, memory_budget=budget, **given)
    assert made.spec.memory_bytes == limit
    assert made.key == launch_spec(descriptor, "rollout", checkpoint=checkpoint, memory_budget=1, **given).key

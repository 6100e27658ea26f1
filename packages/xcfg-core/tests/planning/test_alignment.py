from __future__ import annotations

import pytest
from xcfg.errors import ConfigError

MIXED = {"rollout.dtype": "bfloat16", "training.compute_dtype": "float32"}


def labels(plan):
    return [case.label for case in plan.cases]


def test_aligning_makes_both_sides_equal(make_plan):
    plan = make_plan(
        baseline=MIXED,
        align=[
            {"path": "rollout.dtype", "to": "rollout"},
            {"path": "rollout.dtype", "to": "training"},
            {"path": "training.compute_dtype", "to": "reference"},
        ],
    )
    assert labels(plan) == [
        "baseline",
        "align rollout.dtype to rollout",
        "align rollout.dtype to training",
    ]
    assert plan.cases[1].delta == {"training.compute_dtype": "bfloat16"}
    assert plan.cases[2].delta == {"rollout.dtype": "float32"}
    # The reference is float32, which the training side has already: the same case as aligning to training.
    assert [issue.code for issue in plan.issues] == ["DUPLICATE_CELL"]


def test_aligning_to_the_reference_may_change_both(make_plan):
    plan = make_plan(align=[{"path": "rollout.dtype", "to": "reference"}])
    assert plan.cases[1].delta == {"rollout.dtype": "float32", "training.compute_dtype": "float32"}


def test_what_is_aligned_already_is_an_issue(make_plan):
    plan = make_plan(align=[{"path": "rollout.dtype", "to": "rollout"}])
    assert labels(plan) == ["baseline"]
    assert [issue.code for issue in plan.issues] == ["ALREADY_ALIGNED"]


def test_attention_meets_in_the_group_and_brings_its_partner(make_plan):
    plan = make_plan(align=[{"path": "training.attention_backend", "to": "training"}])
    assert plan.cases[0].knobs["rollout.attention_backend"] == "model_default"
    assert plan.cases[1].delta == {"rollout.attention_backend": "sdpa"}


def test_a_value_without_counterpart_cannot_be_aligned(make_plan):
    with pytest.raises(ConfigError, match=r"NOT_ALIGNABLE.*model_default"):
        make_plan(align=[{"path": "training.attention_backend", "to": "rollout"}])


def test_a_knob_without_a_map_gives_its_reason(make_plan):
    with pytest.raises(ConfigError, match="FSDP gathers"):
        make_plan(align=[{"path": "training.sharding", "to": "rollout"}])


def test_a_partner_from_a_plugin(make_plan):
    plan = make_plan(
        baseline={"rollout.tensor_parallel_size": 2},
        align=[{"path": "rollout.tensor_parallel_size", "to": "rollout"}],
    )
    assert plan.cases[1].delta == {"training.tensor_parallel_size": 2}
    with pytest.raises(ConfigError, match="there is none"):
        make_plan(align=[{"path": "rollout.context_parallel_size", "to": "rollout"}])


def test_aligning_a_knob_of_both_sides_removes_the_difference(make_plan):
    plan = make_plan(
        baseline={"batch.size": 8, "batch.size@rollout": 2},
        align=[{"path": "batch.size", "to": "rollout"}, {"path": "batch.size", "to": "training"}],
    )
    assert [case.delta for case in plan.cases[1:]] == [{"batch.size@training": 2}, {"batch.size@rollout": 8}]
    assert [case.knobs["batch.size"] for case in plan.cases[1:]] == [2, 8]
    assert not any("@" in key for case in plan.cases[1:] for key in case.knobs)


def test_aligning_the_operator_shortcut(make_plan):
    plan = make_plan(align=[{"path": "logp.backend", "to": "reference"}])
    assert {c.backend for c in plan.cases[1].operators["selected_logprob"].values()} == {"reference"}
    with pytest.raises(ConfigError, match="aligned beside"):
        make_plan(
            operators={"selected_logprob": {"rollout": "native"}},
            align=[{"path": "logp.backend", "to": "reference"}],
        )


def test_an_alignment_is_an_axis_of_a_product(make_plan, vary):
    plan = make_plan(
        strategy="product",
        baseline=MIXED,
        interventions=vary(("batch.size", [1])),
        align=[{"path": "rollout.dtype", "to": "rollout"}],
    )
    assert labels(plan) == [
        "baseline",
        "batch.size=1",
        "align rollout.dtype to rollout",
        "batch.size=1, align rollout.dtype to rollout",
    ]
    assert plan.cases[3].delta == {"batch.size": 1, "training.compute_dtype": "bfloat16"}


def test_an_alignment_follows_the_values_of_its_cell(make_plan, vary):
    plan = make_plan(
        strategy="product",
        interventions=vary(("rollout.dtype", ["float32"])),
        align=[{"path": "rollout.dtype", "to": "rollout"}],
    )
    assert labels(plan) == [
        "baseline",
        "rollout.dtype=float32",
        "rollout.dtype=float32, align rollout.dtype to rollout",
    ]
    assert plan.cases[2].delta == {"rollout.dtype": "float32", "training.compute_dtype": "float32"}


def test_an_alignment_that_undoes_a_change_is_filtered(make_plan, vary):
    plan = make_plan(
        strategy="product",
        baseline=MIXED,
        interventions=vary(("rollout.dtype", ["float16"])),
        align=[{"path": "rollout.dtype", "to": "training"}],
    )
    (cell,) = plan.filtered
    assert cell.code == "INEFFECTIVE_KNOB"
    assert cell.label == "rollout.dtype=float16, align rollout.dtype to training"


def test_a_cell_in_which_nothing_can_be_aligned_is_filtered(make_plan, vary):
    plan = make_plan(
        strategy="product",
        baseline={"rollout.attention_backend": "eager", "training.attention_backend": "sdpa"},
        interventions=vary(("training.attention_backend", ["model-default"])),
        align=[{"path": "rollout.attention_backend", "to": "training"}],
    )
    (cell,) = plan.filtered
    assert cell.code == "NOT_ALIGNABLE"
    assert len(plan.cases) == 3

"""Combinations of align entries: what a search plans in place of the strategy's cells."""

from __future__ import annotations

import pytest
from xcfg.errors import ConfigError
from xcfg.planning import plan_experiment
from xcfg.schema.codec import evolve
from xcfg.schema.experiment import Combination

ALIGN = [
    {"path": "rollout.dtype", "to": "training"},
    {"path": "rollout.tensor_parallel_size", "to": "training"},
    {"path": "rollout.attention_backend", "to": "training"},
]
BASELINE = {
    "batch": {"size": 8},
    "rollout": {"dtype": "bfloat16", "tensor_parallel_size": 2, "attention_backend": "sdpa"},
    "training": {"compute_dtype": "float32", "attention_backend": "sdpa", "tensor_parallel_size": 1},
}


@pytest.fixture
def planned(load, knobs, digests):
    """planned(*combinations, **changes): the plan of the experiment above with these combinations."""

    def make(*combinations, **change):
        experiment = load(align=ALIGN, baseline=BASELINE, **change)
        return plan_experiment(evolve(experiment, combinations=combinations), knobs, digests)

    return make


def test_the_plan_is_the_baseline_and_the_combinations(planned):
    """Failing means that a search scores cells that nobody asked for, or loses one."""
    found = planned(Combination(align=(0,)), Combination(align=(0, 1)), controls={"repeats": 2})
    assert [case.label for case in found.cases] == [
        "baseline",
        "align rollout.dtype to training",
        "align rollout.dtype to training, align rollout.tensor_parallel_size to training",
    ]
    assert found.combinations == tuple(case.case_id for case in found.cases[1:])


def test_a_combination_is_the_case_that_the_file_plans(planned):
    """Failing means that a search scores again what `xcfg run` has sealed."""
    by_file = {case.label: case.case_id for case in planned().cases}
    found = planned(Combination(align=(1,)))
    assert found.cases[0].case_id == by_file["baseline"]
    assert found.combinations == (by_file["align rollout.tensor_parallel_size to training"],)


def test_what_changes_nothing_is_the_production_point(planned):
    """Failing means that an entry whose sides are equal already becomes a case of its own."""
    found = planned(Combination(), Combination(align=(2,)), Combination(align=(0, 2)), Combination(align=(0,)))
    baseline, dtype = found.cases
    assert found.combinations == (baseline.case_id, baseline.case_id, dtype.case_id, dtype.case_id)


def test_a_repeat_is_the_same_case_scored_once_more(planned):
    found = planned(Combination(repeats=1), Combination(align=(0,), repeats=2))
    labels = {case.label: case for case in found.cases}
    assert list(labels) == [
        "baseline",
        "repeat 1",
        "align rollout.dtype to training",
        "align rollout.dtype to training, repeat 1",
        "align rollout.dtype to training, repeat 2",
    ]
    case, again = labels["align rollout.dtype to training"], labels["align rollout.dtype to training, repeat 2"]
    assert (again.role, again.index, again.delta, again.knobs) == ("repeat", 2, case.delta, case.knobs)
    assert labels["repeat 1"].delta == {} and len({item.case_id for item in found.cases}) == 5


def test_a_filtered_combination_has_no_case(planned):
    found = planned(
        Combination(align=(0,), repeats=1),
        constraints=[{"code": "NO", "when": {"rollout.dtype": ["float32"]}, "require": {}, "reason": "no room"}],
    )
    assert found.combinations == ("",) and len(found.cases) == 1
    assert [cell.code for cell in found.filtered] == ["NO"]


def test_the_limit_of_the_file_is_that_of_its_strategy(planned):
    """Failing means that a search ends after its scoring, when it plans everything that it tried."""
    assert len(planned(Combination(align=(0,), repeats=9), limits={"max_cases": 5}).cases) == 11


def test_too_many_are_refused_before_any_is_made(planned):
    with pytest.raises(ConfigError, match="PLAN_TOO_LARGE"):
        planned(Combination(align=(0,), repeats=4096))

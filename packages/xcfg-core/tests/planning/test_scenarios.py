from __future__ import annotations

from pathlib import Path

import pytest
from xcfg.config import load_experiment
from xcfg.planning import plan_experiment

SCENARIOS = Path(__file__).parents[4] / "examples" / "scenarios"


@pytest.mark.parametrize(("name", "cases"), [("s0", 2), ("s1", 5), ("s2", 11), ("s3", 3)])
def test_the_shipped_scenarios_plan_without_issues(name, cases, knobs, digests):
    plan = plan_experiment(load_experiment(SCENARIOS / f"{name}.json"), knobs, digests)
    assert len(plan.cases) == cases
    assert plan.issues == ()
    assert plan.filtered == ()


def test_s0_asks_for_what_the_smoke_runtime_holds(knobs, digests):
    case = plan_experiment(load_experiment(SCENARIOS / "s0.json"), knobs, digests).cases[0]
    assert case.knobs == {
        "batch.size": 2,
        "logp.backend": "smoke_only.logp_reference",
        "rollout.context_parallel_size": 1,
        "rollout.dtype": "float32",
        "rollout.enable_prefix_caching": False,
        "rollout.enforce_eager": True,
        "rollout.tensor_parallel_size": 1,
        "training.attention_backend": "eager",
        "training.compute_dtype": "float32",
        "training.sharding": "unsharded",
    }
    assert {c.backend for c in case.operators["selected_logprob"].values()} == {"smoke_only.logp_reference"}


def test_s3_keeps_the_fields_of_the_contract(knobs, digests):
    experiment = load_experiment(SCENARIOS / "s3.json")
    assert (experiment.experiment_id, experiment.scenario_id) == (
        "qwen3-8b-alignment",
        "qwen3-8b-tp4-cp4-bf16",
    )
    assert experiment.baseline["rollout.context_parallel_size"] == 4
    labels = [case.label for case in plan_experiment(experiment, knobs, digests).cases]
    assert labels == ["baseline", "batch.size=1", "logp.backend=rlkernel.reference_logp"]

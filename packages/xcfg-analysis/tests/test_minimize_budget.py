"""`explained` on a real run whose case has the larger precision budget: bfloat16 where production trains in float32."""

from __future__ import annotations

import re

import numpy as np
import pytest
import xcfg
from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.minimize.journey import minimize_run

COARSER = "training.compute_dtype=bfloat16"
EXPERIMENT = {
    "experiment_id": "budgets",
    "baseline": {
        "batch": {"size": 4},
        "rollout": {"dtype": "bfloat16", "attention_backend": "sdpa"},
        "training": {"compute_dtype": "float32", "attention_backend": "sdpa", "sharding": "unsharded"},
    },
    "interventions": [{"path": "training.compute_dtype", "values": ["bfloat16"]}],
    "controls": {},
}


@pytest.fixture(scope="module")
def folder(runs, manager, tmp_path_factory):
    home = tmp_path_factory.mktemp("budgets")
    xcfg.run(runs.write_experiment(home, **EXPERIMENT), plugins=manager, output_root=home / "runs")
    return home / "runs" / "budgets"


def test_it_has_an_outcome_by_the_smaller_budget(folder, manager):
    """Failing means that such a set stays open for ever, or that rounding more coarsely is a cure."""
    found = minimize_run(folder, "explained", plugins=manager)
    trials = {trial.align: trial for trial in found.minimization.trials}
    assert trials[()].outcome == "meets"
    trial = trials[COARSER,]
    assert trial.outcome == "fails" and "production point's precision budget" in trial.reason, trial.reason
    evidence = Evidence.open(folder, plugins=manager)
    rows = {row.label: row for row in evidence.cube.rows}
    assert rows[COARSER].assessment.assessment == "EXPLAINED_BY_PRECISION", "by its own budget it would meet it"


def test_its_ratio_is_that_of_the_sealed_scores(folder, manager):
    """By hand: rms of the coarser side's error over the rms of production's plain scores in float32."""
    run = xcfg.open_run(folder)
    cases = {case.planned.label: case for case in run.cases}
    base, case, active = cases["baseline"], cases[COARSER], run.rollout.active

    def rms(first, second):
        values = [item["selected_logprob"].astype(np.float64)[active] for item in (first, second)]
        return np.sqrt(np.mean((values[0] - values[1]) ** 2))

    precise = base.score("plain_eager_float64")
    budget = max(rms(base.score(f"plain_{name}_float32"), precise) for name in ("eager", "sdpa"))
    held = run.assess_by(case, base)
    assert held.assessment == "EXCESS_TRAINING"
    assert held.b_training == pytest.approx(budget, rel=1e-9)
    ratio = rms(case.score("training"), case.score("plain_eager_float32")) / budget
    assert held.r_training.value == pytest.approx(ratio, rel=1e-9) and held.r_training.low > 1
    assert float(re.search(r"r_training = ([0-9.e+]+)", held.reason)[1]) == pytest.approx(ratio, rel=0.01)

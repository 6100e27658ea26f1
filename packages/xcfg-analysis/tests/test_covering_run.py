"""A real run of a covering array: what its plan covers, its effects, and the pairs that its rows cannot tell apart."""

from __future__ import annotations

import numpy as np
import pytest
import xcfg
from xcfg.cli.main import main
from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.page.analysis import analyze_evidence

AXES = {"training.compute_dtype": "float32", "training.attention_backend": "eager", "rollout.dtype": "float32"}
EXPERIMENT = {
    "experiment_id": "covering",
    "strategy": "pairwise",
    "interventions": [{"path": path, "values": [value]} for path, value in AXES.items()],
    "controls": {"reference": False},
}


@pytest.fixture(scope="module")
def ran(runs, manager, tmp_path_factory):
    """(file, evidence)."""
    home = tmp_path_factory.mktemp("covering")
    file = runs.write_experiment(home, **EXPERIMENT)
    xcfg.run(file, plugins=manager, output_root=home / "runs")
    return file, Evidence.open(home / "runs" / "covering", plugins=manager)


def test_the_plan_says_what_it_covers(ran, capsys):
    """Failing means that nobody knows which interactions a run could have shown."""
    assert main(["plan", str(ran[0])]) == 0
    assert "covers 3 of 3 pairs of changed values by 1 more case" in capsys.readouterr().out


def test_every_single_change_has_an_effect_and_the_row_one_sum(ran):
    """By hand: mean d^2 of the row, less the baseline's, less what each single change does; all from sealed tokens."""
    _, evidence = ran
    found = analyze_evidence(evidence)
    assert {item.knobs for item in found.effects} == {*((path,) for path in AXES), tuple(sorted(AXES))}
    (one,) = found.interactions
    assert one.knobs == tuple(sorted(AXES)) and len(one.among) == 3
    rows = {row.case_id: row for row in evidence.cube.rows}
    squares = []
    for case_id in one.cases:
        d, mask = evidence.difference(rows[case_id], rows[case_id].verdict_edge)
        squares.append(np.mean(d[mask] ** 2))
    whole, *alone, base = squares
    assert len(alone) == 3
    assert one.change.value == pytest.approx((whole - base) - sum(item - base for item in alone), rel=1e-9)

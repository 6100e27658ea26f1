"""The sets of changes that are enough among the cases of a run, by the objective that its case calls for."""

from __future__ import annotations

from xcfg.schema.minimization import Minimization
from xcfg.schema.names import Status

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.minimize.of_run import searched
from xcfg_analysis.minimize.report import minimization
from xcfg_analysis.page.causes import is_excess
from xcfg_analysis.rules.points import MEASURED, Points

EXPLAINED, VERDICT = "explained", "verdict"
REDUCTION = "reduction>=90%"
"""What is asked for where rounding explains production as it is, and no case passes."""


def smallest(evidence: Evidence, baseline: Row, points: Points) -> Minimization | None:
    """Return the minimal sets of the executed grid; None where production lacks nothing, or nothing was varied.

    None too for a run of profiles: its baseline is no production point, and its ladder names the sets.
    """
    lacking = baseline.status in MEASURED and (baseline.status == Status.MISMATCH.value or is_excess(baseline))
    if points.profiles or not lacking or not any(row.delta for row in evidence.cube.cases):
        return None
    return minimization(searched(evidence, objective_of(evidence, baseline)))


def objective_of(evidence: Evidence, baseline: Row) -> str:
    """Return an objective that production fails and a case can meet."""
    if is_excess(baseline):
        return EXPLAINED
    passing = any(row.status == Status.PASS.value for row in evidence.cube.cases)
    return VERDICT if passing else REDUCTION

"""In a run of profiles the baseline is the aligned reference, and what is judged is production: A5."""

from __future__ import annotations

from xcfg.schema.names import Assessment, Status

from xcfg_analysis.cube.rows import Row
from xcfg_analysis.rules.points import Points

EXPLAINED = Assessment.EXPLAINED_BY_PRECISION.value


def production_status(points: Points, baseline: Row) -> Status:
    """Return the status of the production point; CANCELLED where a run of profiles does not hold it."""
    row = points.production if points.profiles else baseline
    return Status.CANCELLED if row is None else Status(row.status)


def production_row(points: Points, baseline: Row) -> Row:
    """Return the row whose verdict heads the page: production, or the baseline where a run of profiles lacks it."""
    return points.production if points.profiles and points.production is not None else baseline


def is_acquitted(points: Points) -> bool:
    """Return whether a run of profiles holds a production point that passes and that rounding explains."""
    row = points.production if points.profiles else None
    explained = row is not None and row.assessment is not None and row.assessment.assessment == EXPLAINED
    return row is not None and row.status == Status.PASS.value and explained


def introduced(points: Points) -> str:
    """Return what a reader has to know before the rest of the conclusion; empty for any other run."""
    if not points.profiles:
        return ""
    if points.production is None:
        return "Production (A5) was not run: the verdict is that of A0, both sides aligned. "
    return "The verdict is production's (A5); each case is held against A0, both sides aligned. "

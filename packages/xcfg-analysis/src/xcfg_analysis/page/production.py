"""In a run of profiles the baseline is the aligned reference, and what is judged is production: A5."""

from __future__ import annotations

from xcfg.schema.names import Status

from xcfg_analysis.cube.rows import Row
from xcfg_analysis.rules.ladder import ladder
from xcfg_analysis.rules.points import Points


def production_status(points: Points, baseline: Row) -> Status:
    """Return the status of the production point; CANCELLED where a run of profiles does not hold it."""
    row = points.production if points.profiles else baseline
    return Status.CANCELLED if row is None else Status(row.status)


def introduced(points: Points) -> str:
    """Return what a reader has to know before the rest of the conclusion; empty for any other run."""
    if not points.profiles:
        return ""
    status = "was not run" if points.production is None else points.production.status
    level = ladder(points)
    told = f"A run of profiles: its baseline is A0, both sides aligned; production, A5, {status}."
    return f"{told} {level.text} "

"""All rules over one cube."""

from __future__ import annotations

from collections.abc import Mapping

from xcfg.schema.rules import Findings

from xcfg_analysis.cube.rows import Cube
from xcfg_analysis.rules.decisions import decide
from xcfg_analysis.rules.downstream import Series, rank_severity
from xcfg_analysis.rules.interpretation import interpret
from xcfg_analysis.rules.ladder import ladder
from xcfg_analysis.rules.points import find_points


def conclude(cube: Cube, series: Series | None = None, narrowed: Mapping[str, bool] | None = None) -> Findings:
    """Return what the rules say. `series` ranks severity and informs the rules that ask for it; no status changes.

    narrowed: as for `ladder`.
    """
    points = find_points(cube)
    severity = () if series is None else rank_severity(series)
    return Findings(
        level=ladder(points, narrowed),
        interpretation=interpret(points, series, severity),
        decisions=decide(points, series),
        severity=severity,
        remarks=() if series is None else series.remarks,
    )

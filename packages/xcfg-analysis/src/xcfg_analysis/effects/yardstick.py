"""One yardstick: every case is judged by the smaller of its own and the production point's threshold.

A case may compute in a dtype with a larger threshold than production, and would then pass with a gap that production
may not have; or in one with a smaller threshold, which it has to meet.
"""

from __future__ import annotations

import numpy as np

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Row


def yardstick(row: Row, production: Row) -> float | None:
    """Return the threshold in nats that a case is judged by; None where either has none."""
    if row.threshold is None or production.threshold is None:
        return None
    return min(row.threshold, production.threshold)


def over(evidence: Evidence, row: Row, limit: float | None) -> int | None:
    """Return how many tokens of the verdict edge differ by strictly more than `limit`; None without figures."""
    found = evidence.difference(row, row.verdict_edge) if limit is not None and row.verdict_edge else None
    if found is None or limit is None:
        return None
    d, mask = found
    return int(np.count_nonzero(np.abs(d[mask]) > limit))

"""Movement: the same arm, case against baseline. It says that a setting did something, never that it opens the gap."""

from __future__ import annotations

import numpy as np
from xcfg.schema.analysis import Movement

from xcfg_analysis.cube.load import Bool, Evidence, Float
from xcfg_analysis.cube.rows import Row


def movements(evidence: Evidence, row: Row, baseline: Row) -> tuple[Movement, ...]:
    """Return the movement of every arm that both rows have and that was scored anew for `row`, verdict arms first."""
    order = {"training": 0, row.verdict_arm: 1}
    found = []
    for arm in sorted(row.arms, key=lambda name: (order.get(name, 2), name)):
        if arm not in baseline.arms or arm == "recorded" or row.arms[arm].key == baseline.arms[arm].key:
            continue
        mine, its = evidence.scores(row, arm), evidence.scores(baseline, arm)
        if mine is not None and its is not None:
            found.append(movement(arm, mine, its, evidence.active))
    return tuple(found)


def movement(arm: str, mine: Float, its: Float, active: Bool) -> Movement:
    """Return how far two scores of one arm lie apart over active tokens; float64 [T] each.

    Tokens that only one of them scored do not take part.
    """
    both = active & np.isfinite(mine) & np.isfinite(its)
    difference = np.abs(mine[both] - its[both])
    tokens = len(difference)
    return Movement(
        arm=arm,
        tokens=tokens,
        differing=int(np.count_nonzero(difference)),
        mean_abs=float(difference.mean()) if tokens else 0.0,
        rms=float(np.sqrt(np.square(difference).mean())) if tokens else 0.0,
        max_abs=float(difference.max()) if tokens else 0.0,
    )

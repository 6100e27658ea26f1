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
            exact = evidence.exact(row, arm), evidence.exact(baseline, arm)
            found.append(movement(arm, mine, its, evidence.active, exact))
    return tuple(found)


def movement(
    arm: str, mine: Float, its: Float, active: Bool, exact: tuple[Float | None, Float | None] = (None, None)
) -> Movement:
    """Return how far two scores of one arm lie apart over active tokens; float64 [T] each.

    Tokens that only one of them scored do not take part. exact: of both, the log probabilities in float64 of the logits
    that each was made from. What lies between these the logits moved; the rest of the movement the sum rounded.
    """
    both = active & np.isfinite(mine) & np.isfinite(its)
    signed = mine[both] - its[both]
    difference = np.abs(signed)
    tokens = len(difference)
    of_logits = exact[0][both] - exact[1][both] if exact[0] is not None and exact[1] is not None else None
    return Movement(
        arm=arm,
        tokens=tokens,
        differing=int(np.count_nonzero(difference)),
        mean_abs=float(difference.mean()) if tokens else 0.0,
        rms=_rms(signed),
        max_abs=float(difference.max()) if tokens else 0.0,
        of_logits=None if of_logits is None else _rms(of_logits),
        of_sum=None if of_logits is None else _rms(signed - of_logits),
    )


def _rms(values: Float) -> float:
    return float(np.sqrt(np.square(values).mean())) if len(values) else 0.0

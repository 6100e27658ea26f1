"""Percentile intervals of a ratio of sums, with whole sequences as the draws; pairs stay together.

Tokens of one sequence share a prefix and are not independent, so sequences are resampled, and a case and the
production point are resampled alike: what the two share cancels in their ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xcfg.schema.contract import AssessmentRule
from xcfg.schema.result import Interval

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class IntervalRule:
    """How an interval is made: its level, the draws, their seed, and the fewest sequences that it may rest on."""

    level: float = 0.95
    resamples: int = 2000
    seed: int = 0
    min_sequences: int = 8

    @classmethod
    def of(cls, rule: AssessmentRule) -> IntervalRule:
        """Return the numbers by which the contract makes the intervals of the precision budget."""
        return cls(rule.level, rule.resamples, rule.seed, rule.min_sequences)


def ratio(above: Float, below: Float, used: Bool, rule: IntervalRule) -> Interval | str:
    """Return sum(above) / sum(below) with its interval, both float64 [S], or why there is none.

    used: bool [S], the sequences that have tokens; the draws are among them.
    """
    rows = np.flatnonzero(used)
    kept = np.stack([above, below], axis=1)[rows]
    if len(rows) < max(2, rule.min_sequences):
        return f"{len(rows)} sequences are too few for an interval, the contract asks for {rule.min_sequences}"
    if not bool(np.isfinite(kept).all()):
        return "the figure is not known, or overflows, in some sequence"
    drawn = np.random.default_rng(rule.seed).integers(0, len(rows), size=(rule.resamples, len(rows)))
    sums = kept[drawn].sum(axis=1)
    whole = kept.sum(axis=0)
    if not bool((sums[:, 1] > 0).all()) or whole[1] <= 0:
        return "there is nothing to divide by in some draws of the sequences"
    tail = (1.0 - rule.level) / 2.0
    value = float(whole[0] / whole[1])
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [tail, 1.0 - tail])
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))

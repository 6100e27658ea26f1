"""Intervals of a mean over tokens, with whole sequences as the draws: those of the effects, by the contract's rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xcfg.schema.contract import AssessmentRule
from xcfg.schema.result import Interval

from xcfg_analysis.cube.load import Float
from xcfg_analysis.effects.bootstrap import LEAST_DRAWS, Estimate, estimates


@dataclass(frozen=True)
class IntervalRule:
    """How an interval is made: its level, the seed of its draws, and the fewest sequences that it may rest on."""

    level: float = 0.95
    seed: int = 0
    min_sequences: int = 8

    @classmethod
    def of(cls, rule: AssessmentRule) -> IntervalRule:
        """Return the numbers by which the contract makes the intervals of the precision budget."""
        return cls(rule.level, rule.seed, rule.min_sequences)


def token_mean(sums: Float, tokens: Float, rule: IntervalRule) -> Interval | str:
    """Return sum(sums) / sum(tokens) with its interval, both float64 [S], or why there is none.

    A sequence without tokens takes no part.
    """
    found = estimated_mean(sums, tokens, rule)
    return found if isinstance(found, str) else Interval(value=found.value, low=found.low, high=found.high)


def estimated_mean(sums: Float, tokens: Float, rule: IntervalRule, *, draws: int = LEAST_DRAWS) -> Estimate | str:
    """Return what `token_mean` does with its p value, which is not corrected; draws: as of effects.bootstrap."""
    used = tokens > 0
    count = int(np.count_nonzero(used))
    if count < max(2, rule.min_sequences):
        return f"{count} sequences are too few for an interval, the contract asks for {rule.min_sequences}"
    if not bool(np.isfinite(sums[used]).all()):
        return "the figure is not known, or overflows, in some sequence"
    found = estimates(sums[:, None], tokens, level=rule.level, seed=rule.seed, draws=draws)[0]
    return found if found.bounded else "the figure rests on too few sequences for an interval"

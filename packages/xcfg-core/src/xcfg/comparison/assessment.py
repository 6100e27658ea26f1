"""Is the gap just rounding? The precision budget beside the verdict (contract, section 4).

b(dtype) is the larger rms distance of two plain scores (eager and sdpa attention in that compute dtype) from
a high-precision reference of the same tokens: what honest rounding costs on this model. It is never made from
the two sides' own errors, since a one-sided fault would hide in its own error.

    R_training = rms(training - reference) / b(training dtype)       R_rollout likewise
    R_gap      = rms(training - rollout) / sqrt(b_training^2 + b_rollout^2)
    bias       = mean(training - rollout), against bias_limit * max(b)

Each with a percentile interval of a bootstrap over sequences, numerator and b resampled together. In order:

1. EXCESS_TRAINING, EXCESS_ROLLOUT: that side's interval lies above the limit (both: the larger ratio, and the
   reason names the other). EXCESS_GAP: only the gap's does.
2. BIASED: the interval of the bias lies outside the band on one side.
3. EXPLAINED_BY_PRECISION: all three intervals lie below the limit.
4. UNDECIDED: anything else, fewer sequences than the contract asks for, or a budget of 0 (both plain scores
   equal the reference bit for bit) under a side whose error is not 0.

NO_REFERENCE: a needed table is missing or invalid; the reason names it. The assessment never changes a
status.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from xcfg.comparison.bootstrap import percentile_interval, resampled_sums
from xcfg.comparison.budget import find_budget
from xcfg.comparison.exact import Float
from xcfg.comparison.layout import Layout
from xcfg.comparison.tables import ScoreTable
from xcfg.schema.codec import evolve
from xcfg.schema.contract import AssessmentRule
from xcfg.schema.names import Assessment
from xcfg.schema.result import AssessmentResult, Interval

TOKENS, TRAINING, ROLLOUT, PLAIN, GAP, BIAS = 0, 1, 2, 3, 7, 8
"""Columns of Budget.sums; PLAIN is the first of four."""


def no_reference(reason: str) -> AssessmentResult:
    """Return the assessment of a case whose budget cannot be made."""
    return AssessmentResult(assessment=Assessment.NO_REFERENCE.value, reason=reason)


def assess(
    training: ScoreTable,
    rollout: ScoreTable,
    reference: Mapping[str, ScoreTable],
    layout: Layout,
    rule: AssessmentRule,
) -> AssessmentResult:
    """Return the assessment of one case; both sides' scores must be finite on active tokens.

    reference: `reference:<dtype>` and `plain:<attention>:<dtype>`, see budget.py for which are needed.
    """
    found = find_budget(training, rollout, reference, layout)
    if isinstance(found, str):
        return no_reference(found)
    sums = found.sums(layout)
    if not len(sums):
        return no_reference("the reference scores share no active token with the case")
    precise = found.reference.compute_dtype or str(found.reference.logprob.dtype)
    return judge_budget(sums, rule, precise, layout.rollout.sequence_count)


def judge_budget(sums: Float, rule: AssessmentRule, reference_dtype: str, sequences: int) -> AssessmentResult:
    """Return the assessment from per-sequence sums float64 [S, 9]; `sequences`: how many the rollout has."""
    whole = Ratios.of(sums.sum(axis=0, keepdims=True))
    base = AssessmentResult(
        assessment=Assessment.UNDECIDED.value,
        b_training=_finite(whole.b_training),
        b_rollout=_finite(whole.b_rollout),
        reference_dtype=reference_dtype,
        sequences=len(sums),
        tokens=int(sums[:, TOKENS].sum()),
    )
    note = f"over {len(sums)} of {sequences} sequences" if len(sums) < sequences else ""
    if not bool(np.isfinite(sums).all()):
        return evolve(base, reason="the squared errors overflow float64")
    if not sums[:, [TRAINING, ROLLOUT, GAP]].any():
        exact = Assessment.EXPLAINED_BY_PRECISION.value
        return evolve(base, assessment=exact, reason=_join("both sides equal the reference bit for bit", note))
    if not whole.defined:
        zero = "the plain scores equal the reference bit for bit, so the budget is 0 and no ratio exists"
        return evolve(base, reason=_join(zero, note))
    if len(sums) < rule.min_sequences:
        few = f"{len(sums)} sequences are too few for an interval, the contract asks for {rule.min_sequences}"
        return evolve(base, reason=few)
    drawn = Ratios.of(resampled_sums(sums, rule.resamples, rule.seed))
    if not drawn.defined:
        return evolve(base, reason=_join("the budget is 0 in some resamples, so there is no interval", note))
    intervals = {
        name: Interval(value=float(getattr(whole, name)[0]), low=low, high=high)
        for name in ("r_training", "r_rollout", "r_gap", "bias")
        for low, high in (percentile_interval(getattr(drawn, name), rule.level),)
    }
    assessment, reason = decide(intervals, rule, float(max(whole.b_training[0], whole.b_rollout[0])))
    return evolve(base, assessment=assessment.value, reason=_join(reason, note), **intervals)


@dataclass(frozen=True)
class Ratios:
    """Figures per row (the whole, or one resample), float64 [rows]. defined: every ratio is finite."""

    b_training: Float
    b_rollout: Float
    r_training: Float
    r_rollout: Float
    r_gap: Float
    bias: Float
    defined: bool

    @staticmethod
    def of(sums: Float) -> Ratios:
        """Return the ratios of summed columns float64 [rows, 9]; an error of 0 in a budget of 0 is 0."""
        with np.errstate(all="ignore"):
            mean = sums / sums[:, [TOKENS]]
            b_training = np.sqrt(np.maximum(mean[:, PLAIN], mean[:, PLAIN + 1]))
            b_rollout = np.sqrt(np.maximum(mean[:, PLAIN + 2], mean[:, PLAIN + 3]))
            errors = (np.sqrt(mean[:, TRAINING]), np.sqrt(mean[:, ROLLOUT]), np.sqrt(mean[:, GAP]))
            budgets = (b_training, b_rollout, np.hypot(b_training, b_rollout))
            ratios = [np.where(e == 0.0, 0.0, e / b) for e, b in zip(errors, budgets, strict=True)]
        defined = all(bool(np.isfinite(ratio).all()) for ratio in ratios)
        return Ratios(b_training, b_rollout, ratios[0], ratios[1], ratios[2], mean[:, BIAS], defined)


def decide(intervals: Mapping[str, Interval], rule: AssessmentRule, budget: float) -> tuple[Assessment, str]:
    """Return the assessment of four intervals and why; `budget` is the larger b, in nats."""
    sides = {"r_training": Assessment.EXCESS_TRAINING, "r_rollout": Assessment.EXCESS_ROLLOUT}
    above = [name for name in (*sides, "r_gap") if intervals[name].low > rule.ratio]
    worst = sorted((name for name in above if name in sides), key=lambda name: -intervals[name].value)
    if above:
        named = ", ".join(f"{name} = {intervals[name].value:.3g}" for name in (worst or above))
        return (sides[worst[0]] if worst else Assessment.EXCESS_GAP), f"{named} above the limit of {rule.ratio:g}"
    limit = rule.bias * budget
    bias = intervals["bias"]
    if bias.low > limit or bias.high < -limit:
        return Assessment.BIASED, f"mean difference {bias.value:.3g} lies outside +-{limit:.3g} nats"
    below = [name for name in (*sides, "r_gap") if intervals[name].high < rule.ratio]
    if len(below) == len(sides) + 1:
        wide = bias.low < -limit or bias.high > limit
        return (
            Assessment.EXPLAINED_BY_PRECISION,
            "the interval of the bias reaches beyond its band" if wide else "",
        )
    open_ = ", ".join(name for name in (*sides, "r_gap") if name not in below)
    return Assessment.UNDECIDED, f"the interval of {open_} holds the limit of {rule.ratio:g}"


def _finite(value: Float) -> float | None:
    return float(value[0]) if math.isfinite(float(value[0])) else None


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)

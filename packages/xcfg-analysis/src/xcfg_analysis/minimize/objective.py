"""What an alignment has to reach. An objective is recorded with its outcome, and none of them is called PASS.

| name | met where |
|---|---|
| verdict | no active token of the verdict edge differs by more than the yardstick |
| explained | the assessment is EXPLAINED_BY_PRECISION, by the smaller of its own and the production point's budget |
| k3<=X | mean of exp(d) - 1 - d, nats |
| reduction>=P% | 1 - mean d^2 / mean d^2 of the production point, by the same draws of sequences |

The yardstick of every case is the smaller of its own and the production point's threshold or budget, so that a coarser
dtype cannot meet an objective by being allowed more. `explained` and the last two are decided by intervals over
sequences: one that holds the limit is UNRESOLVED. So is a case without a verdict: it neither meets nor fails.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from xcfg.errors import UsageError
from xcfg.schema.names import Assessment
from xcfg.schema.result import Interval

from xcfg_analysis.cube.load import Float
from xcfg_analysis.samples.interval import IntervalRule, token_mean
from xcfg_analysis.samples.sample import K3, SQUARES, TOKENS, Sample, is_wider

KNOWN = "verdict, explained, k3<=X (nats), reduction>=P% (of mean d^2)"
_FAILED = {
    item.value
    for item in Assessment
    if item not in (Assessment.EXPLAINED_BY_PRECISION, Assessment.UNDECIDED, Assessment.NO_REFERENCE)
}
_LIMIT = re.compile(r"(?P<name>k3\s*<=|reduction\s*>=)\s*(?P<number>[0-9.eE+-]+)\s*(?P<percent>%?)")


class Outcome(str, Enum):
    """What is known of one set of alignments."""

    MEETS = "meets"
    FAILS = "fails"
    UNRESOLVED = "UNRESOLVED"


@dataclass(frozen=True)
class Judged:
    """An outcome, the figure that it rests on, and why it is none. repeatable: another scoring could change it."""

    outcome: Outcome
    value: float | None = None
    interval: Interval | None = None
    reason: str = ""
    repeatable: bool = True


@dataclass(frozen=True)
class Objective:
    """One of KNOWN. kind: its name without the limit."""

    name: str
    kind: str
    limit: float = 0.0
    rule: IntervalRule = field(default_factory=IntervalRule)

    def judge(self, samples: Sequence[Sample], production: Sequence[Sample]) -> Judged:
        """Return the outcome of a case from all its scorings, the first one first; so too of the production point."""
        bad = next((item for item in (*samples, *production) if not item.measured), None)
        if bad is not None:
            which = "the case" if any(bad is item for item in samples) else "the production point"
            reason = f"{which} ended {bad.status}" + (f": {bad.reason}" if bad.reason else "")
            return Judged(Outcome.UNRESOLVED, reason=reason, repeatable=False)
        if self.kind == "verdict":
            return _verdict(samples, production)
        if self.kind == "explained":
            return _explained(samples, production)
        sums = _pooled(samples)
        if self.kind == "k3":
            return self._below(token_mean(sums[:, K3], sums[:, TOKENS], self.rule), self.limit)
        before = _pooled(production)
        if before.shape != sums.shape or not np.array_equal(before[:, TOKENS], sums[:, TOKENS]):
            reason = "it was compared on other tokens than the production point"
            return Judged(Outcome.UNRESOLVED, reason=reason, repeatable=False)
        if not before[:, SQUARES].any():
            reason = "the production point has no difference to reduce"
            return Judged(Outcome.UNRESOLVED, reason=reason, repeatable=False)
        # Per token, what exceeds the share that may stay; its sign is the question, and every sequence has a say in it,
        # also where the case has few sequences left that differ at all.
        excess = sums[:, SQUARES] - (1.0 - self.limit) * before[:, SQUARES]
        judged = self._below(token_mean(excess, sums[:, TOKENS], self.rule), 0.0)
        if judged.interval is None:
            return judged
        scale, found = float(before[:, TOKENS].sum() / before[:, SQUARES].sum()), judged.interval
        low, value, high = (min(1.0, self.limit - end * scale) for end in (found.high, found.value, found.low))
        return Judged(judged.outcome, value, Interval(value=value, low=low, high=high), judged.reason)

    def _below(self, found: Interval | str, limit: float) -> Judged:
        """Return whether an interval lies at or below `limit`."""
        if isinstance(found, str):
            return Judged(Outcome.UNRESOLVED, reason=found, repeatable=False)
        if found.high <= limit:
            return Judged(Outcome.MEETS, found.value, found)
        if found.low > limit:
            return Judged(Outcome.FAILS, found.value, found)
        return Judged(Outcome.UNRESOLVED, found.value, found, "the interval holds the limit")


def parse(text: str, rule: IntervalRule | None = None) -> Objective:
    """Return the objective that `text` names. Raises UsageError."""
    rule = rule or IntervalRule()
    plain = text.strip()
    if plain in ("verdict", "explained"):
        return Objective(plain, plain, rule=rule)
    match = _LIMIT.fullmatch(plain)
    if match is None:
        raise UsageError(f"there is no objective {text!r}", hint=f"Available: {KNOWN}.")
    kind = "k3" if match["name"].startswith("k3") else "reduction"
    try:
        number = float(match["number"])
    except ValueError:
        number = math.nan
    share = kind == "reduction"
    if not math.isfinite(number) or number < 0 or bool(match["percent"]) != share or (share and not 0 < number <= 100):
        raise UsageError(
            f"the objective {text!r} has no usable limit",
            hint="k3<=X takes nats, at least 0; reduction>=P% takes more than 0 % and at most 100 %.",
        )
    if share:
        return Objective(f"reduction>={number:g}%", kind, number / 100.0, rule)
    return Objective(f"k3<={number:g}", kind, number, rule)


def _verdict(samples: Sequence[Sample], production: Sequence[Sample]) -> Judged:
    limits = [item.threshold for item in (*samples, *production)]
    if any(limit is None for limit in limits):
        return Judged(Outcome.UNRESOLVED, reason="an edge has no threshold, so there is no verdict", repeatable=False)
    yardstick = min(limit for limit in limits if limit is not None)
    tops = [item.max_abs for item in samples if item.max_abs is not None]
    over = [top > yardstick for top in tops]
    if all(over) or not any(over):
        outcome = Outcome.FAILS if over[0] else Outcome.MEETS
        return Judged(outcome, max(tops), reason=f"yardstick {yardstick:g} nats")
    reason = f"{sum(over)} of {len(over)} scorings have a token over {yardstick:g} nats"
    return Judged(Outcome.UNRESOLVED, max(tops), reason=reason)


def _explained(samples: Sequence[Sample], production: Sequence[Sample]) -> Judged:
    judged = [_explains(item, production[0]) for item in samples]
    if len({item.outcome for item in judged}) == 1:
        return judged[0]
    reason = f"the scorings are assessed differently: {'; '.join(sorted({item.reason for item in judged}))}"
    return Judged(Outcome.UNRESOLVED, reason=reason)


def _explains(case: Sample, production: Sample) -> Judged:
    """Return the outcome of one scoring: a failure by its own budget, else what the smaller budget of the two says."""
    said, why, by = case.assessment, "", ""
    wider = is_wider(case.budgets, production.budgets)
    if wider and said not in _FAILED:
        if case.lesser is None:
            return Judged(Outcome.UNRESOLVED, reason=f"{_larger(case, production)}, and no scores", repeatable=False)
        said, why = case.lesser.assessment, case.lesser.reason
        by = f" by the production point's precision budget, since {_larger(case, production)}"
    reason = f"assessed {said}{by}" + (f": {why}" if why else "")
    if said in _FAILED:
        return Judged(Outcome.FAILS, reason=reason)
    if said == Assessment.EXPLAINED_BY_PRECISION.value:
        return Judged(Outcome.MEETS, reason=reason)
    # The budget needs more sequences or a reference; the same case again gives neither.
    return Judged(Outcome.UNRESOLVED, reason=reason, repeatable=said == Assessment.UNDECIDED.value)


def _larger(case: Sample, production: Sample) -> str:
    """Return on which side the budget of a case allows more than the production point's."""
    told = []
    for side, mine, its in zip(("training", "rollout"), case.budgets, production.budgets, strict=True):
        if is_wider((mine, None), (its, None)):
            told.append(f"its own on {side}, {mine:.3g} nats, is larger than that, {its:.3g}")
    return " and ".join(told)


def _pooled(samples: Sequence[Sample]) -> Float:
    """Return the per-sequence sums, averaged over scorings: float64 [S, 4]."""
    pooled: Float = np.mean([item.sums for item in samples], axis=0)
    return pooled

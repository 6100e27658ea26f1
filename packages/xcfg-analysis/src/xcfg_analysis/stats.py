"""Tests in which whole sequences are the independent draws, with closed-form p values; numpy alone.

Standard errors are cluster-robust (Liang and Zeger 1986), with as many degrees of freedom as clusters carry the
regressor (the inverse participation ratio of its sum of squares, less one), so that a fit that rests on two
sequences is judged as one.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from xcfg_analysis.tokens import Bool, Float, Int

GRID = 2001


@dataclass(frozen=True)
class Line:
    """An estimated slope: its value, its standard error, its degrees of freedom, and the intercept (0 if none)."""

    slope: float
    error: float
    freedom: float
    intercept: float = 0.0

    @property
    def t(self) -> float:
        """Slope over its standard error; infinite where the fit is exact."""
        if self.error > 0:
            return self.slope / self.error
        return math.copysign(math.inf, self.slope) if self.slope else 0.0

    @property
    def two_sided(self) -> float:
        """Probability of a larger |t| without any slope."""
        return min(1.0, 2.0 * student_tail(abs(self.t), self.freedom))

    @property
    def upper(self) -> float:
        """Probability of a larger t without any slope."""
        tail = student_tail(abs(self.t), self.freedom)
        return tail if self.slope > 0 else 1.0 - tail

    @property
    def margin(self) -> float:
        """Half the width of the 95 % interval."""
        return student_quantile(round(self.freedom, 2)) * self.error


def student_tail(t: float, freedom: float) -> float:
    """Return P(T > t) for t >= 0: the integral of cos^(freedom - 1) over the angle arctan(t / sqrt(freedom))."""
    if math.isinf(t):
        return 0.0
    start = math.atan(t / math.sqrt(freedom))
    angle = np.linspace(start, math.pi / 2, GRID)
    log_norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(math.pi)
    heights = np.exp(log_norm + (freedom - 1) * np.log(np.maximum(np.cos(angle), 1e-300)))
    return float(np.sum(0.5 * (heights[1:] + heights[:-1]) * np.diff(angle)))


@functools.lru_cache(maxsize=256)
def student_quantile(freedom: float, tail: float = 0.025) -> float:
    """Return t with P(T > t) = tail, by bisection."""
    low, high = 0.0, 1e3
    for _ in range(36):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if student_tail(middle, freedom) > tail else (low, middle)
    return high


def through_origin(x: Float, y: Float, cluster: Int) -> Line | None:
    """Return the least squares fit of y = slope x over clusters; None where x does not vary from 0."""
    return _fit(x, y, y, cluster, 0.0, None)


def straight(x: Float, y: Float, cluster: Int) -> Line | None:
    """Return the least squares fit of y = intercept + slope x over clusters; None where x does not vary."""
    middle, level = float(x.mean()), float(y.mean())
    return _fit(x - middle, y - level, y, cluster, level, middle)


def _fit(x: Float, y: Float, raw: Float, cluster: Int, level: float, middle: float | None) -> Line | None:
    count = int(cluster[-1]) + 1 if len(cluster) else 0
    weights = np.bincount(cluster, x * x, minlength=count) if count else np.zeros(0)
    total = float(weights.sum())
    if count < 2 or total <= 1e-300 or not math.isfinite(total):
        return None
    slope = float((x * y).sum()) / total
    scores = np.bincount(cluster, x * (y - slope * x), minlength=count)
    error = math.sqrt(float((scores * scores).sum()) * count / (count - 1)) / total
    freedom = max(1.0, total * total / float((weights * weights).sum()) - 1.0)
    return Line(slope, error, freedom, 0.0 if middle is None else level - slope * middle)


def binomial_tail(hits: int, trials: int, chance: float) -> float:
    """Return P(X >= hits) for X ~ Binomial(trials, chance), 0 < chance < 1."""
    if hits <= 0:
        return 1.0
    counts = np.arange(hits, trials + 1)
    logs = [
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(chance)
        + (trials - k) * math.log1p(-chance)
        for k in counts.tolist()
    ]
    top = max(logs)
    return min(1.0, math.exp(top) * math.fsum(math.exp(value - top) for value in logs))


def bootstrap_effect(removed: Float, concerned: Bool, cluster: Int, *, draws: int = 400) -> tuple[float, float, float]:
    """Return (value, low, high): root mean of `removed` over the concerned tokens, clusters drawn with replacement.

    removed: float64 [N], d^2 - rest^2 per token, nats^2. The draws are seeded; negative means count as 0.
    """
    count = int(cluster[-1]) + 1
    sums = np.bincount(cluster, np.where(concerned, removed, 0.0), minlength=count)
    sizes = np.bincount(cluster, concerned, minlength=count)
    used = np.flatnonzero(sizes)
    sums, sizes = sums[used], sizes[used]
    value = math.sqrt(max(0.0, float(sums.sum() / sizes.sum())))
    drawn = np.random.default_rng(5).integers(
        0, len(used), size=(min(draws, max(1, (1 << 24) // len(used))), len(used))
    )
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(np.sqrt(np.maximum(means, 0.0)), [0.025, 0.975])
    return value, min(float(low), value), max(float(high), value)

"""From exact sums to diagnostics: one formula per figure, None where it overflows or is undefined."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from xcfg.comparison.sums import EdgeSums


def guarded(formula: Callable[[], float]) -> float | None:
    """Return the value of `formula`; None when it overflows, divides by zero or is not finite."""
    try:
        value = formula()
    except (OverflowError, ZeroDivisionError, ValueError):
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Figures:
    """Sums of one edge over `count` tokens with d in [low, high] and |d| in [least, top]."""

    sums: EdgeSums
    count: int
    low: float
    high: float
    least: float
    top: float

    def mean(self, name: str) -> float | None:
        """Return the mean of one sum."""
        return self.sums.total[name].mean(self.count)

    def shared(self) -> dict[str, float | None]:
        """Return the diagnostics that every edge has, by field of EdgeResult."""
        bias = self.mean("d")
        chi2 = self.mean("expm1_2")
        expm1 = self.mean("expm1")
        return {
            "mean_abs": self.mean("abs"),
            "bias": bias,
            "rms": self.rms(),
            "ratio0": None if expm1 is None else guarded(lambda: 1.0 + expm1),
            "approx_kl0": self.mean("k3"),
            "mismatch_kl": None if bias is None else 0.0 - bias,
            "chi2": chi2,
            "ess": self.ess(),
            "ppl_ratio": None if bias is None else guarded(lambda: math.exp(-bias)),
            "pearson": self.correlation("u", "v", "uu", "vv", "uv"),
        }

    def rms(self) -> float | None:
        """Return sqrt(mean d^2)."""
        squares = self.mean("squares")
        return None if squares is None else guarded(lambda: self.sums.scale * math.sqrt(squares))

    def ess(self) -> float | None:
        """Return the effective sample size of the weights w = exp(d) as a share: (sum w)^2 / (N sum w^2)."""
        first, second = self.sums.total["expm1"], self.sums.total["expm1_2"]
        if not (first.finite and second.finite):
            return None
        weights, squares = self.count + first.fraction(), self.count + second.fraction()
        return guarded(lambda: float(weights * weights / (self.count * squares)))

    def correlation(self, a: str, b: str, aa: str, bb: str, ab: str) -> float | None:
        """Return Pearson's r from five sums; None when a side does not vary."""
        totals = [self.sums.total[name] for name in (a, b, aa, bb, ab)]
        if not all(total.finite for total in totals):
            return None
        one, two, first, second, both = (total.fraction() for total in totals)
        varying = [self.count * first - one * one, self.count * second - two * two]
        if any(value <= 0 for value in varying):
            return None
        # The variances are reduced to floats apart: their product as a fraction need not fit one float.
        covariance = (self.count * both - one * two) / max(varying)
        share = Fraction(min(varying)) / max(varying)
        return guarded(lambda: max(-1.0, min(1.0, float(covariance) / math.sqrt(float(share)))))

    def deviation(self, plain: str, squares: str, scale: float = 1.0) -> float | None:
        """Return the standard deviation with N - 1, from a sum and a sum of squares (divided by scale^2)."""
        one, two = self.sums.total[plain], self.sums.total[squares]
        if self.count < 2 or not (one.finite and two.finite):
            return None
        spread = two.fraction() - (one.fraction() / Fraction(scale)) ** 2 / self.count
        return guarded(lambda: scale * math.sqrt(max(0.0, float(spread / (self.count - 1)))))

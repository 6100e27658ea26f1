"""Interval and p value of a change of a token mean, with whole sequences as the independent draws.

The change theta = sum_s a_s / sum_s n_s is a ratio of sums over sequences, with the linearised error
se^2 = S / (S - 1) sum_s (a_s - theta n_s)^2 / (sum_s n_s)^2. Two answers are made of it; the more careful one counts:

- a studentised cluster bootstrap: sequences are drawn with replacement, (theta* - theta) / se* is kept of each
  resample, and its order statistics turn theta and se into an interval and a p value (Efron and Tibshirani 1993,
  chapter 12.5; Davison and Hinkley 1997, chapter 5.2.1);
- Student's t with S - 1 degrees of freedom, by scipy.

With 8 to 32 sequences neither does alone. Of 4,000 simulated changes that are none, a two-sided test at 5 % rejects,
in percent with 8, 12 and 32 sequences:

    spread of the changes               bootstrap         Student's t       both
    normal                              5.8  5.3  4.8     5.7  5.8  4.6     4.0  4.5  4.1
    difference of two lognormal ones    7.5  9.2  9.0     3.7  4.1  4.1     3.0  3.8  4.0
    normal, in four sequences of ten    6.5 10.6  9.5     1.2  2.1  4.5     1.1  2.1  4.4
    lognormal about its mean            8.2  7.6  5.8    12.4 10.8  8.6     7.5  6.9  4.7

The last row is a lognormal of spread 0.7. It needs 24 sequences for its nominal level, within what 4,000 trials tell:
7.5, 6.3, 5.9, 5.4, 5.2 % with 8, 12, 16, 24, 32; a spread of 1.0 has 10.3, 8.9, 7.9, 6.4, 5.8 % with 8, 12, 16, 32, 64.
No other known interval cures that. With a spread of 1.0 and 8, 12, 16, 32 sequences of equal length, in percent:

    both, as here                                     9.8  8.0  7.8  6.3
    both, the wider half on either side               9.6  7.8  7.7  6.0    (2.7 to 3.5 where the spread is normal)
    t with Johnson's correction for skewness (1978)   9.6  7.8  7.5  6.6    (5.9 to 8.3 for differences of lognormals)
    both, and random signs of the sequences agree     9.6  7.9  7.8  6.2
    random signs of the sequences alone              15.6 14.8 15.0 12.0

A percentile interval of such draws covers 84 to 94 % where 95 are asked for.

`scipy.stats.bootstrap` is not used for the draws: it has percentile, basic and BCa intervals, no studentised one and no
p value. The tests hold the resamples against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from xcfg_analysis.cube.load import Float

LEAST_DRAWS = 9999
FINE = 10
"""The smallest p value, times the size of the family, is at most a tenth of what a test has to reach."""
BLOCK = 1 << 22
EXACT = 1e-12
"""Relative spread below which every sequence says the same."""


@dataclass(frozen=True)
class Estimate:
    """A change with its interval and p value. low, high are infinite where the change rests on too few sequences."""

    value: float
    low: float
    high: float
    p: float

    @property
    def bounded(self) -> bool:
        """Whether the interval is finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def draws_for(family: int, level: float) -> int:
    """Return how many resamples a family of tests needs; one less than a multiple of 1000: ranks are whole."""
    return max(LEAST_DRAWS, math.ceil(2 * FINE * family / (1.0 - level) / 1000) * 1000 - 1)


def estimates(changes: Float, sizes: Float, *, level: float, seed: int, draws: int = LEAST_DRAWS) -> list[Estimate]:
    """Return the estimate of every column of `changes`, float64 [S, K]: summed changes per sequence.

    sizes: float64 [S], tokens per sequence; a sequence without tokens takes no part. At least two must be left. Every
    column is resampled by the same draws.
    """
    used = sizes > 0
    columns, tokens = changes[used], sizes[used]
    count, total = len(tokens), float(tokens.sum())
    if count < 2:
        raise ValueError(f"{count} sequences have tokens, a change over sequences needs two")
    from scipy.stats import t as student

    quantile = float(student.ppf(1.0 - (1.0 - level) / 2.0, count - 1))
    value = columns.sum(axis=0) / total
    rest = columns - value * tokens[:, None]
    error = np.sqrt(count / (count - 1) * np.square(rest).sum(axis=0)) / total
    width = max(1, BLOCK // draws)
    found: list[Estimate] = []
    for start in range(0, columns.shape[1], width):
        part = slice(start, start + width)
        drawn = _studentised(rest[:, part], tokens, draws, seed)
        found += [
            _estimate(*one, level, quantile, count - 1) for one in zip(value[part], error[part], drawn.T, strict=True)
        ]
    return found


def _studentised(rest: Float, tokens: Float, draws: int, seed: int) -> Float:
    """Return float64 [draws, K]: (theta* - theta) / se* of every resample; infinite where se* is 0."""
    square, cross = np.square(rest), rest * tokens[:, None]
    count = len(tokens)
    result = np.empty((draws, rest.shape[1]))
    at = 0
    for counts in resampled(count, draws, seed):
        total = (counts @ tokens)[:, None]
        shift = counts @ rest / total
        large = counts @ square + np.square(shift) * (counts @ np.square(tokens))[:, None]
        spread = large - 2.0 * shift * (counts @ cross)
        spread[spread <= EXACT * large] = 0.0  # what is left of a resample of equal sequences is rounding
        error = np.sqrt(count / (count - 1) * spread) / total
        with np.errstate(divide="ignore", invalid="ignore"):
            result[at : at + len(counts)] = np.where(shift == 0.0, 0.0, shift / error)
        at += len(counts)
    return result


def resampled(count: int, draws: int, seed: int) -> Iterator[Float]:
    """Yield float64 [rows, count]: how often each of `count` sequences is drawn in each resample."""
    source = np.random.Generator(np.random.PCG64(seed))
    rows = max(1, BLOCK // count)
    for start in range(0, draws, rows):
        yield source.multinomial(count, np.full(count, 1.0 / count), size=min(rows, draws - start)).astype(np.float64)


def _estimate(value: float, error: float, drawn: Float, level: float, quantile: float, freedom: int) -> Estimate:
    from scipy.stats import t as student

    draws = len(drawn)
    smallest = 2.0 / (draws + 1)
    if error <= EXACT * abs(value):
        return Estimate(float(value), float(value), float(value), 1.0 if value == 0.0 else smallest)
    ranked = np.sort(drawn)
    rank = max(1, round((1.0 - level) / 2.0 * (draws + 1)))
    below = min(float(ranked[rank - 1]), -quantile)
    above = max(float(ranked[draws - rank]), quantile)
    t = value / error
    beyond = 1 + min(int(np.count_nonzero(drawn >= t)), int(np.count_nonzero(drawn <= t)))
    p = max(min(1.0, beyond * smallest), 2.0 * float(student.sf(abs(t), freedom)))
    return Estimate(float(value), float(value - above * error), float(value - below * error), min(1.0, p))

"""A cluster bootstrap over sequences that gives the same bits on every machine.

Tokens of one sequence share a prefix and are not independent, so whole sequences are resampled. The draws
come from PCG64's raw output (a stream that numpy never changes), and the per-sequence sums are rounded to a
grid on which a matrix product is exact in any order, so that no BLAS can move an interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from xcfg.comparison.exact import Float

BLOCK = 1 << 22
"""Counts held at once, so that memory stays bounded for many sequences."""
SMALLEST = 1e-250


def resampled_sums(columns: Float, resamples: int, seed: int) -> Float:
    """Return float64 [resamples, K]: sums over S rows drawn with replacement from columns float64 [S, K]."""
    values = on_grid(columns)
    return np.concatenate([counts @ values for counts in _counts(len(columns), resamples, seed)])


def on_grid(columns: Float) -> Float:
    """Return `columns` [S, K] rounded so that any S values of a column add up exactly in any order."""
    top = np.max(np.abs(columns), axis=0)
    bits = max(1, math.ceil(math.log2(len(columns) + 1)))
    step = np.where(top > SMALLEST, np.ldexp(1.0, np.frexp(top)[1] + bits - 53), 1.0)
    rounded: Float = np.where(top > SMALLEST, np.rint(columns / step) * step, columns)
    return rounded


def _counts(sequences: int, resamples: int, seed: int) -> Iterator[Float]:
    """Yield float64 [rows, S]: how often each sequence is drawn in each resample."""
    source = np.random.PCG64(seed)
    rows = max(1, BLOCK // sequences)
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        raw: NDArray[np.uint64] = source.random_raw(count * sequences)
        drawn = ((raw >> np.uint64(32)) * np.uint64(sequences)) >> np.uint64(32)
        flat = drawn.astype(np.int64) + np.repeat(np.arange(count) * sequences, sequences)
        yield np.bincount(flat, minlength=count * sequences).reshape(count, sequences).astype(np.float64)


def percentile_interval(samples: Float, level: float) -> tuple[float, float]:
    """Return the two-sided percentile interval of float64 [resamples]."""
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(samples, [tail, 1.0 - tail], method="linear")
    return float(low), float(high)

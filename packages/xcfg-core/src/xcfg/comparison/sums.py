"""Every sum of one edge, in one pass over its tokens: exact, chunked, grouped."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from xcfg.comparison.exact import ExactSum, Float, Runs, Scattered, largest, slices

SERIES_BELOW = 2.0**-4
PLAIN = ("expm1", "expm1_2", "k3", "uu", "vv", "uv", "p", "q", "pp", "qq", "pq", "gap", "gap2", "exp_abs")
GROUPED = ("d", "abs", "squares")


def k3(d: Float, expm1: Float) -> Float:
    """Return exp(d) - 1 - d without cancellation: its series for small |d|, else expm1(d) - d.

    The k3 estimator of Schulman, "Approximating KL divergence" (2020). float64 [N], nats.
    """
    series = np.full_like(d, 1.0 / 11)
    for divisor in range(10, 2, -1):
        series *= d
        series += 1.0
        series *= 1.0 / divisor
    series *= d
    series += 1.0
    series *= d * d
    series *= 2.0**-1
    return np.where(np.abs(d) < SERIES_BELOW, series, expm1 - d)


@dataclass
class Grouping:
    """Figures per group. maximum, mismatches, tokens: [groups]; sums: exact, by name."""

    groups: int
    names: tuple[str, ...] = GROUPED
    sums: dict[str, ExactSum] = field(init=False)
    maximum: Float = field(init=False)
    mismatches: NDArray[np.int64] = field(init=False)
    tokens: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Start every figure at 0."""
        self.sums = {name: ExactSum(self.groups) for name in self.names}
        self.maximum = np.zeros(self.groups)
        self.mismatches = np.zeros(self.groups, dtype=np.int64)
        self.tokens = np.zeros(self.groups, dtype=np.int64)

    def count(self, groups: Runs | Scattered, size: Float, over: NDArray[np.bool_]) -> None:
        """Add the tokens of one chunk: |d| and mismatch per token."""
        if isinstance(groups, Runs):
            where = groups.groups
            self.tokens[where] += groups.lengths
            self.mismatches[where] += np.add.reduceat(over, groups.starts, dtype=np.int64)
            self.maximum[where] = np.maximum(self.maximum[where], np.maximum.reduceat(size, groups.starts))
            return
        for target, members in ((self.tokens, groups.index), (self.mismatches, groups.index[over])):
            found = np.bincount(members)
            target[: len(found)] += found
        np.maximum.at(self.maximum, groups.index, size)


Place = tuple[Grouping, Runs | Scattered]


@dataclass(frozen=True)
class Index:
    """Groups of one chunk: sequence (rising), bucket, rank of the first and the second side; integer [N]."""

    sequence: NDArray[np.int32]
    bucket: NDArray[np.int64]
    ranks: tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]


class EdgeSums:
    """All sums of one edge. Groups: sequence, bucket (position x probability), rank of either side."""

    def __init__(
        self, sequences: int, buckets: int, ranks: tuple[int, int], scale: float, origin: tuple[float, float]
    ) -> None:
        """Keep the divisor of d before squaring, and the origin of the moments of both sides."""
        self.scale, self.origin = scale, origin
        self.sequence = Grouping(sequences, (*GROUPED, "u", "v"))
        self.bucket = Grouping(buckets)
        self.ranks = (Grouping(ranks[0]), Grouping(ranks[1]))
        self.largest_gap = 0.0
        self.total = {name: ExactSum() for name in (*GROUPED, "u", "v", *PLAIN)}

    def add(self, first: Float, second: Float, d: Float, over: NDArray[np.bool_], index: Index) -> None:
        """Add a chunk of N tokens."""
        size = np.abs(d)
        places: list[Place] = [(self.sequence, Runs(index.sequence)), (self.bucket, Scattered(index.bucket))]
        places += [
            (grouping, Scattered(rank))
            for grouping, rank in zip(self.ranks, index.ranks, strict=True)
            if rank is not None
        ]
        for grouping, groups in places:
            grouping.count(groups, size, over)
        scaled = d if self.scale == 1.0 else d / self.scale
        u, v = first - self.origin[0], second - self.origin[1]
        for name, values in (("d", d), ("abs", size), ("squares", scaled * scaled), ("u", u), ("v", v)):
            self._grouped(name, values, [place for place in places if name in place[0].sums])
        self._plain(first, second, d, size, u, v)

    def _grouped(self, name: str, values: Float, places: list[Place]) -> None:
        if not math.isfinite(largest(values)):
            for total in (self.total[name], *(grouping.sums[name] for grouping, _ in places)):
                total.spoil()
            return
        for key, part in slices(values):
            self.total[name].put(key, part)
            for grouping, groups in places:
                grouping.sums[name].put(key, part, groups)

    def _plain(self, first: Float, second: Float, d: Float, size: Float, u: Float, v: Float) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            expm1 = np.expm1(d)
            p, q = np.exp(first), np.exp(second)
            gap = np.abs(p - q)
            self.largest_gap = float(np.maximum(self.largest_gap, gap.max()))
            terms: list[Float] = [expm1, expm1 * (expm1 + 2.0), k3(d, expm1), u * u, v * v, u * v]
            terms += [p, q, p * p, q * q, p * q, gap, gap * gap, np.exp(size)]
        for name, values in zip(PLAIN, terms, strict=True):
            self.total[name].add(values)

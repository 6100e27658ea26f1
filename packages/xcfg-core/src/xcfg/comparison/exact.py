"""Sums of float64 that are exactly rounded, whatever the order, the chunking or the number of ranks.

Each value is cut into slices on one fixed grid of binary levels, as in reproducible summation (Demmel and
Nguyen, IEEE Trans. Computers 2015; the cut is Rump's error-free extraction). Every slice of a level is a
multiple of the level's unit and small enough that float64 adds 2**27 of them without rounding, so numpy may
add them in any order. At the end the few level sums are added as integers and rounded once; the result equals
`math.fsum`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Key = tuple[int, int]

WIDTH = 25
"""Bits per level."""
ROOM = 1 << (53 - WIDTH - 1)
"""How many slices one level adds without rounding."""
LOWEST = -43
"""The level whose unit lies below the smallest subnormal: nothing is left after it."""
HUGE = math.ldexp(1.0, 900)
SHIFT = 8 * WIDTH
UNIT = 1 << 1074
"""Integers count multiples of 2**-1074, the smallest subnormal."""


def largest(values: Float) -> float:
    """Return max |x| of float64 [N], 0 for none; NaN where there is one."""
    return float(np.maximum(values.max(), -values.min())) if len(values) else 0.0


def slices(values: Float) -> Iterator[tuple[Key, Float]]:
    """Yield (level, shift) and every value's slice at that level; times 2**shift they add up to `values`.

    values: finite float64 [N], not modified.
    """
    top = largest(values)
    if top >= HUGE:
        large = np.where(np.abs(values) >= HUGE, values, 0.0)
        for (level, _), part in slices(large * math.ldexp(1.0, -SHIFT)):
            yield (level, SHIFT), part
        values = values - large
        top = largest(values)
    if top == 0.0:
        return
    level = max(-(-math.frexp(top)[1] // WIDTH) - 1, LOWEST)
    rest = values
    while True:
        anchor = math.ldexp(3.0, level * WIDTH + 51)
        part = rest + anchor
        part -= anchor
        yield (level, 0), part
        rest = rest - part
        if level == LOWEST or not rest.any():
            return
        level -= 1


class Groups(Protocol):
    """Which group each of N elements belongs to."""

    def add(self, table: Float, part: Float) -> None:
        """Add every element of float64 [N] to its group's place in `table`."""
        ...


class Scattered:
    """Groups by number, in any order: integer [N]."""

    def __init__(self, index: NDArray[np.int64]) -> None:
        """Keep the group of each element."""
        self.index = index

    def add(self, table: Float, part: Float) -> None:
        """Add every element to its group."""
        sums = np.bincount(self.index, weights=part)
        table[: len(sums)] += sums


class Runs:
    """Groups as runs of equal, rising numbers; several times faster than scattered ones."""

    def __init__(self, numbers: NDArray[np.integer[Any]]) -> None:
        """Keep where each run of `numbers`, integer [N], N > 0, begins."""
        self.starts = np.concatenate(([0], np.flatnonzero(np.diff(numbers)) + 1))
        self.groups = numbers[self.starts]
        self.lengths = np.diff(np.concatenate((self.starts, [len(numbers)])))

    def add(self, table: Float, part: Float) -> None:
        """Add every element to its group."""
        table[self.groups] += np.add.reduceat(part, self.starts)


class ExactSum:
    """Exact sums of one quantity, one per group."""

    def __init__(self, groups: int = 1) -> None:
        """Start `groups` sums at 0."""
        self._groups = groups
        self._tables: dict[Key, Float] = {}
        self._added: dict[Key, int] = {}
        self._full: list[tuple[int, Float]] = []
        self._finite = True

    @property
    def finite(self) -> bool:
        """False once a value was infinite or NaN: the sums are then undefined."""
        return self._finite

    def add(self, values: Float) -> None:
        """Add float64 [N] to the first sum."""
        if not math.isfinite(largest(values)):
            self.spoil()
            return
        for key, part in slices(values):
            self.put(key, part)

    def spoil(self) -> None:
        """Say that a value was infinite or NaN."""
        self._finite = False

    def put(self, key: Key, part: Float, groups: Groups | None = None) -> None:
        """Add one slice, to the first sum or to the group of each element."""
        table = self._table(key, len(part))
        if groups is None:
            table[0] += part.sum()
        else:
            groups.add(table, part)

    def _table(self, key: Key, count: int) -> Float:
        added = self._added.get(key, 0) + count
        if key in self._tables and added > ROOM:
            self._full.append((key[1], self._tables.pop(key)))
            added = count
        self._added[key] = added
        return self._tables.setdefault(key, np.zeros(self._groups))

    def integer(self, group: int = 0) -> int:
        """Return the exact sum of a group in units of 2**-1074."""
        total = 0
        pairs = [(key[1], table) for key, table in self._tables.items()]
        for shift, table in [*pairs, *self._full]:
            numerator, denominator = float(table[group]).as_integer_ratio()
            total += (numerator * (UNIT // denominator)) << shift
        return total

    def fraction(self, group: int = 0) -> Fraction:
        """Return the exact sum of a group."""
        return Fraction(self.integer(group), UNIT)

    def sum(self, group: int = 0) -> float | None:
        """Return the sum of a group rounded once; None where it overflows or is undefined."""
        return self.mean(1, (group,))

    def mean(self, count: int, groups: Iterable[int] = (0,)) -> float | None:
        """Return the exact sum over `groups` divided by `count`, rounded once; None where it overflows."""
        if not self._finite or count == 0:
            return None
        try:
            return sum(self.integer(group) for group in groups) / (UNIT * count)
        except OverflowError:
            return None

    def means(self, counts: NDArray[np.int64]) -> list[float]:
        """Return the sum of every group, rounded once, over its count; 0 for a count of 0. Needs finite values."""
        tables = list(self._tables.values())
        if self._full or not tables or any(shift for _, shift in self._tables):
            return [self.mean(int(count), (group,)) or 0.0 for group, count in enumerate(counts)]
        rows = np.stack(tables, axis=1).tolist()
        return [math.fsum(row) / count if count else 0.0 for row, count in zip(rows, counts.tolist(), strict=True)]

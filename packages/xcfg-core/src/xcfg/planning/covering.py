"""Covering arrays of strength 2: few rows in which every pair of levels of every two axes stands somewhere.

A deterministic greedy construction, one row at a time, in the manner of the AETG family (Cohen, Dalal,
Fredman and Patton, 1997): seed a row with the first uncovered pair, then give each other axis the level that
covers most pairs with what is already placed. Every row is kept allowed at each step, so constraints remove
no coverage that a row with the pair and baseline values, or one further change, can give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

Pair = tuple[int, int, int, int]
"""(axis, level, later axis, its level)."""
Row = tuple[int, ...]


@dataclass
class Covering:
    """rows: what was added, in order. impossible: pairs that no tried row may hold."""

    rows: list[Row] = field(default_factory=list)
    impossible: list[Pair] = field(default_factory=list)


def pair_count(levels: Sequence[int]) -> int:
    """Return how many pairs of changed levels there are; `levels[i]` is the number of axis i."""
    total = sum(levels)
    return (total * total - sum(count * count for count in levels)) // 2


def cover(levels: Sequence[int], done: Iterable[Row], allowed: Callable[[Row], bool], *, limit: int) -> Covering | None:
    """Return rows that, with `done`, hold every pair; None as soon as more than `limit` rows are needed.

    levels: per axis the number of levels beside level 0. done: rows that are cases already.
    """
    result = Covering()
    missing = dict.fromkeys(_pairs(levels))
    for row in done:
        _remove(missing, row)
    while missing:
        pair = next(iter(missing))
        start = _start(pair, levels, allowed)
        if start is None:
            del missing[pair]
            result.impossible.append(pair)
            continue
        row = _fill(start, pair, levels, missing, allowed)
        _remove(missing, row)
        result.rows.append(row)
        if len(result.rows) > limit:
            return None
    return result


def _pairs(levels: Sequence[int]) -> Iterator[Pair]:
    """Yield pairs of changed levels first: single changes cover most that have a baseline level."""
    zero: list[Pair] = []
    for first in range(len(levels)):
        for second in range(first + 1, len(levels)):
            for a in range(levels[first] + 1):
                for b in range(levels[second] + 1):
                    if a and b:
                        yield first, a, second, b
                    else:
                        zero.append((first, a, second, b))
    yield from zero


def _remove(missing: dict[Pair, None], row: Row) -> None:
    for first in range(len(row)):
        for second in range(first + 1, len(row)):
            missing.pop((first, row[first], second, row[second]), None)


def _start(pair: Pair, levels: Sequence[int], allowed: Callable[[Row], bool]) -> list[int] | None:
    """Return an allowed row with `pair` and at most one further axis off the baseline; None without."""
    row = [0] * len(levels)
    row[pair[0]], row[pair[2]] = pair[1], pair[3]
    if allowed(tuple(row)):
        return row
    for axis, count in enumerate(levels):
        if axis in (pair[0], pair[2]):
            continue
        for level in range(1, count + 1):
            row[axis] = level
            if allowed(tuple(row)):
                return row
        row[axis] = 0
    return None


def _fill(
    row: list[int],
    pair: Pair,
    levels: Sequence[int],
    missing: dict[Pair, None],
    allowed: Callable[[Row], bool],
) -> Row:
    placed = [pair[0], pair[2]]
    for axis, count in enumerate(levels):
        if axis in (pair[0], pair[2]):
            continue
        gains = sorted(
            ((-_gain(row, axis, level, placed, missing), level) for level in range(count + 1)),
        )
        before = row[axis]
        for gain, level in gains:
            if gain == 0:
                break
            row[axis] = level
            if level == before or allowed(tuple(row)):
                break
            row[axis] = before
        placed.append(axis)
    return tuple(row)


def _gain(row: list[int], axis: int, level: int, placed: list[int], missing: dict[Pair, None]) -> int:
    return sum(
        ((other, row[other], axis, level) if other < axis else (axis, level, other, row[other])) in missing
        for other in placed
    )

"""Covering arrays of strength 2: few rows in which every pair of levels of every two axes stands somewhere.

allpairspy proposes rows, with the planned single changes as rows that there are already; it knows no constraint that
looks at a whole row and promises no coverage under one. So what a constraint refuses is left out, and the pairs that
are still missing are filled in here, one row at a time, in the manner of the AETG family (Cohen, Dalal, Fredman and
Patton, 1997): seed a row with the first uncovered pair, then give each other axis the level that covers most pairs
with what is already placed. Every row is kept allowed at each step, so constraints remove no coverage that a row with
the pair and baseline values, or one further change, can give. The same without proposals is often shorter where
constraints refuse many of them; the shorter of the two is taken. Both are deterministic.

Rows beyond the single changes: 17 with proposals and 33 without for twelve axes of four levels, 8 and 12 for eight of
three, 95 and 104 for four of ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

Pair = tuple[int, int, int, int]
"""(axis, level, later axis, its level)."""
Row = tuple[int, ...]
MAX_PROPOSED = 4_000
"""Pairs of changed levels up to which rows are proposed: beyond, the proposals take longer than they save."""


@dataclass
class Covering:
    """rows: what was added, in order. impossible: pairs that no row holds, since no tried row may."""

    rows: list[Row] = field(default_factory=list)
    impossible: list[Pair] = field(default_factory=list)


def pair_count(levels: Sequence[int]) -> int:
    """Return how many pairs of changed levels there are; `levels[i]` is the number of axis i."""
    total = sum(levels)
    return (total * total - sum(count * count for count in levels)) // 2


def changed_pairs(row: Row) -> Iterator[Pair]:
    """Yield the pairs of changed levels that stand in a row."""
    changed = [(axis, level) for axis, level in enumerate(row) if level]
    for index, (first, a) in enumerate(changed):
        for second, b in changed[index + 1 :]:
            yield first, a, second, b


def cover(levels: Sequence[int], done: Iterable[Row], allowed: Callable[[Row], bool], *, limit: int) -> Covering | None:
    """Return rows that, with `done`, hold every pair; None as soon as more than `limit` rows are needed.

    levels: per axis the number of levels beside level 0. done: rows that are cases already.
    """
    known = list(done)
    found = [item for item in (_complete(levels, known, [], allowed, limit),) if item is not None]
    fewest = len(found[0].rows) if found else limit + 1
    if fewest > _least(levels) and pair_count(levels) <= MAX_PROPOSED:
        proposed = [row for row in _proposed(levels, known) if row not in known and allowed(row)]
        found += [item for item in (_complete(levels, known, proposed, allowed, limit),) if item is not None]
    return min(found, key=lambda item: len(item.rows), default=None)


def _least(levels: Sequence[int]) -> int:
    """Return how many rows nobody can do without: the pairs of changed levels of the two largest axes."""
    first, second = ([*sorted(levels, reverse=True), 0, 0])[:2]
    return first * second


def _proposed(levels: Sequence[int], done: Sequence[Row]) -> Iterator[Row]:
    from allpairspy import AllPairs

    if len(levels) > 1:
        tested = [list(row) for row in done]
        yield from map(tuple, AllPairs([list(range(count + 1)) for count in levels], previously_tested=tested))


def _complete(
    levels: Sequence[int], done: Iterable[Row], proposed: Sequence[Row], allowed: Callable[[Row], bool], limit: int
) -> Covering | None:
    """Return `proposed` and what it takes to hold every pair; None as soon as more than `limit` rows are needed."""
    result = Covering(list(proposed))
    missing = dict.fromkeys(_pairs(levels))
    refused: dict[Pair, None] = {}
    for row in (*done, *proposed):
        _remove(missing, row)
    while missing and len(result.rows) <= limit:
        pair = next(iter(missing))
        start = _start(pair, levels, allowed)
        if start is None:
            del missing[pair]
            refused[pair] = None
            continue
        row = _fill(start, pair, levels, missing, allowed)
        _remove(missing, row)
        _remove(refused, row)  # a row that two further changes make allowed, filled for another pair's sake
        result.rows.append(row)
    result.impossible.extend(refused)
    return result if len(result.rows) <= limit else None


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

"""Which cells a strategy plans, and how many, by arithmetic, before any is made.

In every strategy the baseline comes first and the single changes next; then what the strategy adds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from xcfg.errors import ConfigError
from xcfg.planning.axes import PlanAxis
from xcfg.planning.cells import Cell
from xcfg.planning.covering import Covering, cover, pair_count
from xcfg.schema.experiment import V1, Experiment
from xcfg.schema.plan import PlanIssue

MAX_COVERED_PAIRS = 40_000
"""Bounds the work of a covering array to seconds: 280 axes of two levels, or 24 of ten."""

IndexPair = tuple[int, int]


def listed_pairs(
    experiment: Experiment, axes: Sequence[PlanAxis], dropped: Sequence[str], issues: list[PlanIssue]
) -> list[IndexPair]:
    """Return `pairwise_paths` as axis indices. Raises ConfigError; a repeated pair is an issue.

    dropped: keys of interventions that have no level left; a pair with one has no cell and is an issue.
    """
    source = experiment.source
    if experiment.pairwise_paths and experiment.strategy != "pairwise":
        raise ConfigError(
            f"PAIRWISE_NOT_ENABLED: pairs are listed, but the strategy is {experiment.strategy!r}",
            source=source,
            path="$.pairwise_paths",
            hint='Set "strategy": "pairwise", or remove the pairs.',
        )
    if experiment.strategy == "pairwise" and experiment.schema_version == V1 and not experiment.pairwise_paths:
        raise ConfigError(
            "PAIRWISE_PATHS_REQUIRED: v1 expands listed pairs only, and none is listed",
            source=source,
            path="$.pairwise_paths",
            hint="List the pairs; without them v2 makes a covering array.",
        )
    index = {axis.key: position for position, axis in enumerate(axes)}
    declared = {*index, *dropped}
    pairs: dict[IndexPair, None] = {}
    for position, (first, second) in enumerate(experiment.pairwise_paths):
        where = f"$.pairwise_paths[{position}]"
        _check_pair(first, second, declared, source, where)
        if first in dropped or second in dropped:
            message = f"the pair {first!r}, {second!r} has a path without levels"
            issues.append(PlanIssue(code="EMPTY_PAIR", message=message, path=where))
            continue
        low, high = sorted((index[first], index[second]))
        if (low, high) in pairs:
            message = f"the pair {first!r}, {second!r} stands twice"
            issues.append(PlanIssue(code="DUPLICATE_PAIR", message=message, path=where))
        else:
            pairs[low, high] = None
    return list(pairs)


def _check_pair(first: str, second: str, declared: set[str], source: str, where: str) -> None:
    if first == second:
        raise ConfigError(
            f"INVALID_PAIR: {first!r} stands on both places",
            source=source,
            path=where,
            hint="Name two paths.",
        )
    for key in (first, second):
        if key not in declared:
            raise ConfigError(
                f"UNDECLARED_PAIR_PATH: no intervention varies {key!r}",
                source=source,
                path=where,
                hint="Declared: " + (", ".join(repr(name) for name in sorted(declared)) or "none") + ".",
            )


def check_zip(experiment: Experiment, axes: Sequence[PlanAxis]) -> None:
    """Refuse interventions of different lengths under zip."""
    lengths = {axis.key: len(axis.rows) for axis in axes if axis.alignment is None}
    if experiment.strategy == "zip" and len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key!r} has {length}" for key, length in lengths.items())
        raise ConfigError(
            f"ZIP_LENGTH_MISMATCH: zip pairs values by position, but {shown}",
            source=experiment.source,
            path="$.interventions",
            hint="Give each intervention the same number of values; a value, or the baseline's, may repeat.",
        )


def count_cells(strategy: str, axes: Sequence[PlanAxis], pairs: Sequence[IndexPair]) -> int:
    """Return how many cells the strategy makes; for a covering array the least that it can need."""
    levels = [len(axis.levels) for axis in axes]
    single = 1 + sum(levels)
    if strategy == "product":
        return math.prod(count + 1 for count in levels)
    if strategy == "zip":
        return single + zip_length(axes)
    if strategy == "pairwise" and pairs:
        return single + sum(levels[first] * levels[second] for first, second in pairs)
    if strategy == "pairwise":
        first, second = ([*sorted(levels, reverse=True), 0, 0])[:2]
        return single + first * second
    return single


def zip_length(axes: Sequence[PlanAxis]) -> int:
    """Return how many rows zip has."""
    return max((len(axis.rows) for axis in axes if axis.alignment is None), default=0)


def single_cells(axes: Sequence[PlanAxis]) -> Iterator[Cell]:
    """Yield the baseline, then each level of each axis alone."""
    yield (0,) * len(axes)
    for position, axis in enumerate(axes):
        for level in range(1, len(axis.levels) + 1):
            yield tuple(level if index == position else 0 for index in range(len(axes)))


def combined_cells(strategy: str, axes: Sequence[PlanAxis], pairs: Sequence[IndexPair]) -> Iterator[Cell]:
    """Yield what product, zip and listed pairs add to the single cells."""
    if strategy == "product":
        ranges = [range(len(axis.levels) + 1) for axis in axes]
        yield from (cell for cell in itertools.product(*ranges) if sum(map(bool, cell)) > 1)
    elif strategy == "zip":
        for row in range(zip_length(axes)):
            yield tuple(0 if axis.alignment else axis.rows[row] for axis in axes)
    else:
        for first, second in pairs:
            for a in range(1, len(axes[first].levels) + 1):
                for b in range(1, len(axes[second].levels) + 1):
                    cell = [0] * len(axes)
                    cell[first], cell[second] = a, b
                    yield tuple(cell)


def covering_cells(axes: Sequence[PlanAxis], allowed: Callable[[Cell], bool], *, limit: int, source: str) -> Covering:
    """Return the covering array beyond the allowed single cells. Raises ConfigError when it is too large."""
    levels = [len(axis.levels) for axis in axes]
    pairs = pair_count(levels)
    if pairs > MAX_COVERED_PAIRS:
        raise ConfigError(
            f"PLAN_TOO_LARGE: the axes have {pairs} pairs of levels to cover, more than {MAX_COVERED_PAIRS}",
            source=source,
            path="$.interventions",
            hint="Split the experiment, or list the pairs that matter in pairwise_paths.",
        )
    done = [cell for cell in single_cells(axes) if allowed(cell)]
    covering = cover(levels, done, allowed, limit=limit)
    if covering is None:
        raise ConfigError(
            f"PLAN_TOO_LARGE: beside the single changes, a covering array needs more than {limit} cases",
            source=source,
            path="$.limits.max_cases",
            hint="List fewer values, or raise limits.max_cases, at most 4096.",
        )
    return covering

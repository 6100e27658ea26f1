"""The figures of a row that a gate holds, and how far they may move."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from xcfg.errors import UsageError
from xcfg.schema.gate import BaselineFigure
from xcfg.schema.result import EdgeResult, GroupStat

from xcfg_analysis.cube.rows import Cube, Row

SHOWN = ("max_abs", "mean_abs", "rms", "p99_abs", "bias", "mismatch_ratio", "approx_kl0")
"""Reported and exported; every one has to be finite."""
DRAWS = 2000
LEVEL = 0.95
FEWEST = 8
"""Sequences below which no interval is made, as for the assessment."""


def edge_of(row: Row) -> EdgeResult | None:
    """Return the edge that decides the verdict; None where nothing was compared."""
    return row.edges.get(row.verdict_edge)


def devices_of(cube: Cube) -> Mapping[str, str]:
    """Return the device of each side, as the first measured row has them."""
    return next((row.devices for row in cube.rows if row.devices and edge_of(row) is not None), {})


def figures_of(row: Row) -> dict[str, float | None]:
    """Return the figures of the verdict's edge; None for what is absent or not finite; empty without an edge."""
    edge = edge_of(row)
    if edge is None:
        return {}
    found: dict[str, Any] = {name: getattr(edge, name) for name in SHOWN}
    return {name: None if value is None or not math.isfinite(value) else float(value) for name, value in found.items()}


def corridors(row: Row, percent: float | None) -> dict[str, BaselineFigure]:
    """Return the corridor of every figure that is held. Raises UsageError where there is none.

    percent: half the width in percent of the value; None: the 95 % interval of a bootstrap over sequences, which is
    how far the figure would move with other sequences of the same kind.
    """
    edge, values = edge_of(row), figures_of(row)
    held = {name: value for name, value in values.items() if name in STATISTICS and value is not None}
    if edge is None:
        return {}
    if percent is not None:
        width = {name: abs(value) * percent / 100.0 for name, value in held.items()}
        return {name: _figure(value, value - width[name], value + width[name]) for name, value in held.items()}
    if len(edge.by_sequence) < FEWEST:
        raise UsageError(
            f"{row.label!r} has {len(edge.by_sequence)} sequences, too few for a corridor from their spread "
            f"({FEWEST} at least)",
            hint="Freeze more sequences, or state the corridor with --corridor-percent.",
        )
    drawn = _draw(edge.by_sequence)
    tail = (1.0 - LEVEL) / 2.0
    found = {}
    for name, value in held.items():
        low, high = np.quantile(STATISTICS[name](drawn), [tail, 1.0 - tail])
        found[name] = _figure(value, float(low), float(high))
    return found


def _figure(value: float, low: float, high: float) -> BaselineFigure:
    return BaselineFigure(value=value, low=min(low, value), high=max(high, value))


def _draw(groups: tuple[GroupStat, ...]) -> Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return sums over sequences drawn with replacement, each float64 [DRAWS]."""
    columns = np.array(
        [
            (
                g.active_tokens,
                g.mismatches,
                g.mean_abs * g.active_tokens,
                g.bias * g.active_tokens,
                g.rms**2 * g.active_tokens,
            )
            for g in groups
        ],
        dtype=np.float64,
    )
    picked = np.random.default_rng(0).integers(0, len(columns), size=(DRAWS, len(columns)))
    sums = columns[picked].sum(axis=1)
    return dict(zip(("tokens", "mismatches", "absolute", "signed", "squares"), sums.T, strict=True))


STATISTICS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "mean_abs": lambda sums: sums["absolute"] / sums["tokens"],
    "rms": lambda sums: np.sqrt(sums["squares"] / sums["tokens"]),
    "bias": lambda sums: sums["signed"] / sums["tokens"],
    "mismatch_ratio": lambda sums: sums["mismatches"] / sums["tokens"],
}
"""What is held in a corridor; a maximum and a tail quantile have no honest interval and are only shown."""

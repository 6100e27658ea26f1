"""The views that say most: the drift by position, probability, training rank and weight version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xcfg.schema.analysis import View
from xcfg.schema.result import EdgeResult, GroupStat

from xcfg_analysis.forms import LARGEST
from xcfg_analysis.tokens import Int, Tokens

SHOWN = 3
LEAST = 20
"""Tokens that a row needs to count for the spread of its view."""
MOST = 24


def telling_views(edge: EdgeResult, tokens: Tokens) -> tuple[View, ...]:
    """Return up to three views, the widest spread first; a view with one row tells nothing."""
    views = [
        View(by="position in the response", spread=0.0, rows=_rows(edge.by_position)),
        View(by="rollout probability", spread=0.0, rows=_rows(edge.by_probability)),
    ]
    for name, values in (("training rank", tokens.rank), ("weight version", tokens.weight_version)):
        if values is not None:
            views.append(View(by=name, spread=0.0, rows=_grouped(tokens, values)))
    spread = [(View(by=view.by, spread=_spread(view.rows), rows=view.rows)) for view in views if len(view.rows) > 1]
    return tuple(sorted(spread, key=lambda view: -view.spread)[:SHOWN])


def _rows(stats: Sequence[GroupStat]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "group": item.group,
            "tokens": item.active_tokens,
            "mean_abs": item.mean_abs,
            "max_abs": item.max_abs,
            "bias": item.bias,
            "rms": item.rms,
        }
        for item in stats
    )


def _grouped(tokens: Tokens, values: Int) -> tuple[dict[str, Any], ...]:
    names, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    size = np.abs(tokens.d)
    bias = np.bincount(place, tokens.d) / counts
    mean = np.bincount(place, size) / counts
    rms = np.sqrt(np.bincount(place, size * size) / counts)
    top = np.zeros(len(names))
    np.maximum.at(top, place, size)
    return tuple(
        {
            "group": str(int(names[at])),
            "tokens": int(counts[at]),
            "mean_abs": float(mean[at]),
            "max_abs": float(top[at]),
            "bias": float(bias[at]),
            "rms": float(rms[at]),
        }
        for at in range(min(len(names), MOST))
    )


def _spread(rows: Sequence[dict[str, Any]]) -> float:
    sizes = [row["rms"] for row in rows if row["tokens"] >= LEAST]
    if len(sizes) < 2 or max(sizes) <= 0:
        return 1.0
    # A row without any drift beside one with drift tells most; its ratio is held where JSON can still say it.
    return float(min(LARGEST, max(sizes) / min(sizes))) if min(sizes) > 0 else LARGEST

"""The few figures that every group has: by rank, sequence, response position and rollout probability."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from xcfg.comparison.layout import position_label, probability_labels
from xcfg.comparison.sums import GROUPED, EdgeSums, Grouping
from xcfg.schema.result import GroupStat


def group_stats(grouping: Grouping, scale: float, label: Callable[[int], str]) -> tuple[GroupStat, ...]:
    """Return one record per group that has tokens, in order of the group number."""
    means = {name: grouping.sums[name].means(grouping.tokens) for name in GROUPED}
    return tuple(
        GroupStat(
            group=label(group),
            active_tokens=int(grouping.tokens[group]),
            mismatches=int(grouping.mismatches[group]),
            mean_abs=means["abs"][group],
            max_abs=float(grouping.maximum[group]),
            bias=means["d"][group],
            rms=scale * math.sqrt(means["squares"][group]),
        )
        for group in np.flatnonzero(grouping.tokens).tolist()
    )


def by_bucket(sums: EdgeSums, edges: tuple[float, ...]) -> dict[str, tuple[GroupStat, ...]]:
    """Return `by_position` and `by_probability`: the two margins of the joint buckets."""
    labels = probability_labels(edges)
    width = len(labels)
    buckets = range(sums.bucket.groups // width)
    positions = [([row * width + column for column in range(width)], position_label(row)) for row in buckets]
    chances = [([row * width + column for row in buckets], label) for column, label in enumerate(labels)]
    return {
        name: tuple(
            _union(sums.bucket, members, sums.scale, label)
            for members, label in margins
            if sums.bucket.tokens[members].any()
        )
        for name, margins in (("by_position", positions), ("by_probability", chances))
    }


def _union(grouping: Grouping, members: list[int], scale: float, label: str) -> GroupStat:
    """Return the figures of the union of some groups, which exact sums make exact too."""
    tokens = int(grouping.tokens[members].sum())
    mean = {name: grouping.sums[name].mean(tokens, members) or 0.0 for name in GROUPED}
    return GroupStat(
        group=label,
        active_tokens=tokens,
        mismatches=int(grouping.mismatches[members].sum()),
        mean_abs=mean["abs"],
        max_abs=float(grouping.maximum[members].max()),
        bias=mean["d"],
        rms=scale * math.sqrt(mean["squares"]),
    )

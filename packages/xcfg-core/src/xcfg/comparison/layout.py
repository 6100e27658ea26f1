"""Per-token facts of a rollout that every edge groups by, computed once: sequence and response position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from xcfg.identity.rollout import Rollout

CHUNK = 1 << 15
"""Tokens per step: the working arrays of one step stay in a core's cache."""


def chunks(total: int) -> Iterator[slice]:
    """Yield the slices of `total` tokens, CHUNK at a time."""
    for start in range(0, total, CHUNK):
        yield slice(start, min(start + CHUNK, total))


@dataclass(frozen=True)
class Layout:
    """sequence: int32 [T]. bucket: int8 [T], response position on a binary scale (see `position_label`)."""

    rollout: Rollout
    sequence: NDArray[np.int32]
    bucket: NDArray[np.int8]

    @property
    def buckets(self) -> int:
        """How many position buckets there are."""
        return int(self.bucket.max()) + 1 if len(self.bucket) else 1


def layout_of(rollout: Rollout) -> Layout:
    """Return the layout of `rollout`.

    The response position of a token is its logical position minus that of the sequence's first active token.
    """
    total, count = len(rollout.active), rollout.sequence_count
    sequence = np.repeat(np.arange(count, dtype=np.int32), np.diff(rollout.offsets))
    positions = rollout.tensors["position_ids"]
    start = np.zeros(count, dtype=np.int64)
    active = np.flatnonzero(rollout.active)
    first = np.searchsorted(active, rollout.offsets)
    some = first[1:] > first[:-1]
    start[some] = positions[active[first[:-1][some]]]
    bucket = np.zeros(total, dtype=np.int8)
    for part in chunks(total):
        response = np.maximum(positions[part].astype(np.int64) - start[sequence[part]], 0)
        bucket[part] = np.frexp(response.astype(np.float64))[1]
    return Layout(rollout, sequence, bucket)


def position_label(bucket: int) -> str:
    """Return the response positions of a bucket: 0, 1, 2-3, 4-7, 8-15 and so on."""
    if bucket < 2:
        return str(bucket)
    return f"{1 << (bucket - 1)}-{(1 << bucket) - 1}"


def probability_labels(edges: tuple[float, ...]) -> tuple[str, ...]:
    """Return the names of the probability buckets between `edges`; each holds its lower edge."""
    inner = tuple(f"{low:g}<=p<{high:g}" for low, high in pairwise(edges))
    return (f"p<{edges[0]:g}", *inner, f"p>={edges[-1]:g}")

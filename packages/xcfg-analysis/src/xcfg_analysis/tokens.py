"""What every signature sees: the active tokens of a dump, by sequence and position, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.dumps import DumpTable

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

LIMIT = 1 << 20
"""Active tokens that signatures are fitted on; of a larger dump, whole sequences spread over it are taken."""
GOLDEN = 0.6180339887498949
FEW = 8
BLOCK = 64
"""With fewer than FEW sequences, blocks of BLOCK tokens of a sequence stand in for independent draws."""
BINS = 16
MIDDLE_SHARE = 0.6
"""A bias is constant when the medians of confident and uncertain tokens lie within this share of each other."""
NORMAL = 1.4826
"""Median |x| of a normal variable, inverted: a standard deviation that outliers do not move."""
FLOOR = 0.1
"""The scale of a probability bin is at least this share of the overall scale: confident tokens hardly differ."""


@dataclass(frozen=True)
class Tokens:
    """N active tokens of S sequences (xcfg.plugin.signature.SignatureTokens), and where they lie in the dump.

    cluster: int64 [N], rising: what counts as one independent draw. row: int64 [N] into the table.
    """

    training: Float
    rollout: Float
    d: Float
    scale: Float
    sequence: Int
    starts: Int
    position: Int
    token_id: Int
    rank: Int | None
    weight_version: Int | None
    columns: Mapping[str, Float]
    cluster: Int
    row: Int

    @property
    def relative(self) -> Float:
        """|d| in units of the scale, at most 6: one outlier decides nothing. float64 [N]."""
        return np.minimum(np.abs(self.d) / self.scale, 6.0)

    @property
    def logp(self) -> Float:
        """The middle of both log probabilities, float64 [N], nats: neither side's error selects a token."""
        middle: Float = 0.5 * (self.training + self.rollout)
        return middle


def active_tokens(table: DumpTable, *, limit: int = LIMIT) -> Tokens:
    """Return the active tokens of `table`, at most about `limit`, in whole sequences spread over the dump."""
    counts = np.add.reduceat(table.active.astype(np.int64), table.offsets[:-1]) if table.rows else np.zeros(0, np.int64)
    chosen = table.active
    total = int(counts.sum())
    if total > limit:
        # Multiples of the golden ratio: spread evenly, and in step with no period of ranks or prompts.
        keep = (np.arange(len(counts)) * GOLDEN) % 1.0 < limit / total
        chosen = table.active & np.repeat(keep, np.diff(table.offsets))
    row = np.flatnonzero(chosen)
    sequence = np.repeat(np.arange(len(counts)), np.diff(table.offsets))[row]
    versioned = "weight_version" not in table.unattested
    training, rollout = table.training[row].astype(np.float64), table.rollout[row].astype(np.float64)
    d = training - rollout
    dense, starts = _dense(sequence)
    position = table.positions[row]
    return Tokens(
        training=training,
        rollout=rollout,
        d=d,
        scale=rounding_scale(d, 0.5 * (training + rollout)),
        sequence=dense,
        starts=starts,
        position=position,
        token_id=table.token_ids[row],
        rank=None if table.rank is None else table.rank[row].astype(np.int64),
        weight_version=table.weight_version[row].astype(np.int64) if versioned else None,
        columns={name: values[row].astype(np.float64) for name, values in table.columns.items()},
        cluster=_clusters(dense, len(starts)),
        row=row,
    )


def left_over(tokens: Tokens, rest: Float) -> Tokens:
    """Return the tokens with `rest` to explain; those where it is NaN are gone."""
    keep = np.isfinite(rest)
    d = rest[keep]
    training, rollout = tokens.training[keep], tokens.rollout[keep]
    sequence, starts = _dense(tokens.sequence[keep])

    def part(values: NDArray[Any] | None) -> Any:
        return None if values is None else values[keep]

    return Tokens(
        training=training,
        rollout=rollout,
        d=d,
        scale=rounding_scale(d, 0.5 * (training + rollout)),
        sequence=sequence,
        starts=starts,
        position=tokens.position[keep],
        token_id=tokens.token_id[keep],
        rank=part(tokens.rank),
        weight_version=part(tokens.weight_version),
        columns={name: values[keep] for name, values in tokens.columns.items()},
        cluster=_clusters(sequence, len(starts)),
        row=tokens.row[keep],
    )


def rounding_scale(d: Float, logp: Float) -> Float:
    """Return the usual size of d for tokens of about this log probability, float64 [N], nats, > 0.

    The median |d| of up to 16 equally filled bins of logp, scaled to a standard deviation: less than half of the
    tokens of a bin can be at fault without moving it.
    """
    if not len(d):
        return np.zeros(0)
    size = np.abs(d)
    least = max(FLOOR * NORMAL * float(np.median(size)), 1e-3 * float(np.sqrt(np.mean(size * size))), 1e-12)
    bins = max(1, min(BINS, len(d) // 64))
    order = np.argsort(logp, kind="stable")
    scale = np.empty(len(d))
    for part in np.array_split(order, bins):
        scale[part] = max(NORMAL * float(np.median(size[part])), least)
    return scale


def _dense(sequence: Int) -> tuple[Int, Int]:
    """Return rising sequence numbers as 0 ... S - 1, and the first row of each."""
    if not len(sequence):
        return sequence, np.zeros(0, dtype=np.int64)
    new = np.concatenate(([True], sequence[1:] != sequence[:-1]))
    return np.cumsum(new) - 1, np.flatnonzero(new)


def _clusters(sequence: Int, count: int) -> Int:
    if count >= FEW:
        return sequence
    within = np.arange(len(sequence)) - np.searchsorted(sequence, sequence)
    return _dense(sequence * (len(sequence) + 1) + within // BLOCK)[0]

"""How sequences become rows: order, chunks, physical padding, packing. numpy only.

The logical problem (ids, positions, mask) never changes here; only where its tokens lie does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xcfg.identity.rollout import Rollout

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """The first tokens of one sequence. start: its first flat index in the rollout, -1 for a prompt."""

    sequence: int
    start: int
    ids: Ints
    positions: Ints
    visible: NDArray[np.bool_]

    @property
    def length(self) -> int:
        """Tokens that enter the model."""
        return len(self.ids)


@dataclass(frozen=True)
class Cell:
    """Where a piece lies: `row`, and columns [column, column + piece.length)."""

    piece: Piece
    row: int
    column: int


@dataclass(frozen=True)
class Batch:
    """One forward. input_ids, position_ids int64 [B, C]; attention_mask bool [B, C], None when packed."""

    input_ids: Ints
    position_ids: Ints
    attention_mask: NDArray[np.bool_] | None
    cells: tuple[Cell, ...]


def take_piece(rollout: Rollout, sequence: int, length: int | None = None) -> Piece:
    """Return the first `length` tokens (all by default) of one sequence of `rollout`."""
    span = rollout.span(sequence)
    stop = span.stop if length is None else span.start + length
    part = slice(span.start, stop)
    return Piece(
        sequence=sequence,
        start=span.start,
        ids=rollout.token_ids[part],
        positions=rollout.tensors["position_ids"][part].astype(np.int64),
        visible=rollout.tensors["attention_mask"][part].astype(np.bool_),
    )


def prompt_piece(index: int, ids: Sequence[int]) -> Piece:
    """Return a prompt that belongs to no rollout, with positions from 0."""
    array = np.asarray(ids, dtype=np.int64)
    return Piece(index, -1, array, np.arange(len(array), dtype=np.int64), np.ones(len(array), dtype=np.bool_))


def sequence_order(count: int, shuffle_seed: int | None) -> list[int]:
    """Return the order in which sequences are batched: as frozen, or a permutation by `shuffle_seed`."""
    if shuffle_seed is None:
        return list(range(count))
    return [int(index) for index in np.random.default_rng(shuffle_seed).permutation(count)]


def chunks(order: Sequence[int], size: int) -> list[list[int]]:
    """Return `order` in groups of at most `size`."""
    return [list(order[start : start + size]) for start in range(0, len(order), size)]


def pad(pieces: Sequence[Piece], side: str, pad_id: int) -> Batch:
    """Return one row per piece, padded on `side` (`left` | `right`) to the longest piece."""
    width = max(1, *(piece.length for piece in pieces))
    ids = np.full((len(pieces), width), pad_id, dtype=np.int64)
    positions = np.zeros((len(pieces), width), dtype=np.int64)
    mask = np.zeros((len(pieces), width), dtype=np.bool_)
    cells = []
    for row, piece in enumerate(pieces):
        column = width - piece.length if side == "left" else 0
        where = slice(column, column + piece.length)
        ids[row, where], positions[row, where], mask[row, where] = piece.ids, piece.positions, piece.visible
        cells.append(Cell(piece, row, column))
    return Batch(ids, positions, mask, tuple(cells))


def pack(pieces: Sequence[Piece]) -> Batch:
    """Return all pieces in one row; a position that does not rise by one starts the next sequence."""
    starts = np.concatenate(([0], np.cumsum([piece.length for piece in pieces])))
    return Batch(
        np.concatenate([piece.ids for piece in pieces])[None],
        np.concatenate([piece.positions for piece in pieces])[None],
        None,
        tuple(Cell(piece, 0, int(start)) for piece, start in zip(pieces, starts, strict=False)),
    )


def packing_fault(rollout: Rollout) -> str:
    """Return why `rollout` cannot be packed by position reset, or an empty string."""
    if not bool(rollout.tensors["attention_mask"].all()):
        return "the attention mask hides tokens, and a packed row carries no mask"
    for sequence in range(rollout.sequence_count):
        positions = rollout.tensors["position_ids"][rollout.span(sequence)].astype(np.int64)
        if not np.array_equal(positions, np.arange(len(positions))):
            return f"the positions of sequence {sequence} do not count from 0, so no reset tells its start"
    return ""

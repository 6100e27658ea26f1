"""What each sequence's tokens were when they entered the model; from this the rank attests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from xcfg.errors import WorkerError
from xcfg.identity.attest import attest_sequence
from xcfg.identity.rollout import Rollout
from xcfg.schema.identity import SequenceAttestation

from xcfg_torch.batching import Batch
from xcfg_torch.observe import Seen


class Consumed:
    """Flat arrays over T tokens, written from what the hooks saw; -1 where nothing entered.

    entered: how often each token entered. max_rows ... leaks: layout facts read from what entered.
    """

    def __init__(self, total: int) -> None:
        """Start with nothing consumed."""
        self.ids: NDArray[np.int64] = np.full(total, -1, dtype=np.int64)
        self.positions: NDArray[np.int64] = np.full(total, -1, dtype=np.int64)
        self.entered: NDArray[np.int64] = np.zeros(total, dtype=np.int64)
        self.max_rows = 0
        self.max_sequences = 0
        self.max_sequences_per_row = 0
        self.sides: dict[str, int] = {"left": 0, "right": 0}
        self.uneven_batches = 0
        self.leaks = 0

    def batch(self, seen: Seen, batch: Batch) -> None:
        """Take in the forward of a whole batch; WorkerError when another mask than its own entered."""
        ids, positions = _array(seen.input_ids), _positions(seen)
        self.layout(seen, batch)
        for cell in batch.cells:
            columns = slice(cell.column, cell.column + cell.piece.length)
            flat = slice(cell.piece.start, cell.piece.start + cell.piece.length)
            self.ids[flat] = ids[cell.row, columns]
            self.positions[flat] = positions[cell.row, columns]
            self.entered[flat] += 1

    def step(self, seen: Seen, flat: NDArray[np.int64], rows: NDArray[np.int64], mask: NDArray[np.bool_]) -> None:
        """Take in a single-token forward: token `flat[i]` was row `rows[i]`; `mask` [B, K] must have entered."""
        entered = None if seen.attention_mask is None else _array(seen.attention_mask).astype(np.bool_)
        _same_mask(entered, mask)
        self.ids[flat] = _array(seen.input_ids)[rows, 0]
        self.positions[flat] = _positions(seen)[rows, 0]
        self.entered[flat] += 1

    def attestations(
        self, rollout: Rollout, sequences: Iterable[int], selected: NDArray[np.int64], *, consumed_last: bool
    ) -> tuple[SequenceAttestation, ...]:
        """Return one attestation per sequence from what entered and what the operator was handed."""
        result = []
        for sequence in sorted(sequences):
            span = rollout.span(sequence)
            stop = span.stop if consumed_last else span.stop - 1
            if not bool((self.entered[span.start : stop] == 1).all()):
                raise WorkerError(f"not every token of sequence {sequence} entered the model exactly once")
            handed = selected[span][rollout.active[span]]
            result.append(
                attest_sequence(sequence, self.ids[span.start : stop], self.positions[span.start : stop], handed)
            )
        return tuple(result)

    def layout(self, seen: Seen, batch: Batch) -> None:
        """Take in rows, padding and packing of a forward, whether or not its tokens are scored."""
        mask = None if seen.attention_mask is None else _array(seen.attention_mask).astype(np.bool_)
        _same_mask(mask, batch.attention_mask)
        positions = _positions(seen)
        self.max_rows = max(self.max_rows, len(positions))
        self.max_sequences = max(self.max_sequences, len(batch.cells))
        if mask is None:
            starts = 1 + (np.diff(positions, axis=1) != 1).sum(axis=1)
            self.max_sequences_per_row = max(self.max_sequences_per_row, int(starts.max()))
            self.leaks += int(starts.max() > 1 and not seen.layer_mask)
            return
        self.max_sequences_per_row = max(self.max_sequences_per_row, 1)
        for cell in batch.cells:
            end = cell.column + cell.piece.length
            self.sides["left"] += int(cell.column > 0 and not mask[cell.row, : cell.column].any())
            self.sides["right"] += int(end < mask.shape[1] and not mask[cell.row, end:].any())
        self.uneven_batches += int(len({cell.piece.length for cell in batch.cells}) > 1)


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    return tensor.cpu().numpy()


def _positions(seen: Seen) -> NDArray[Any]:
    if seen.position_ids is None:
        raise WorkerError(
            "the positions that entered the model were not seen", hint="This model takes no position_ids."
        )
    return np.broadcast_to(_array(seen.position_ids), tuple(seen.input_ids.shape))


def _same_mask(entered: NDArray[np.bool_] | None, planned: NDArray[np.bool_] | None) -> None:
    if (entered is None) != (planned is None) or (
        entered is not None and planned is not None and not np.array_equal(entered, planned)
    ):
        raise WorkerError("the attention mask that entered the model is not the one that the batch planned")

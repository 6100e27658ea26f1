"""Teacher forcing: whole sequences in one forward; the arms training, rollout_prefill and reference.

Memory: the head's logits of one batch are held in the model's own dtype, rows * columns * V * itemsize bytes, or
with `logits_to_keep` the scored columns of it; they are picked and widened in chunks of rows, see scoring.py.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.identity.rollout import Rollout
from xcfg.schema.names import Phase

from xcfg_torch.batching import Batch, chunks, pack, pad, sequence_order, take_piece
from xcfg_torch.consumed import Consumed
from xcfg_torch.engine import Engine
from xcfg_torch.layout import Layout
from xcfg_torch.scoring import ScoreSheet


def plan_batches(rollout: Rollout, layout: Layout, pad_id: int) -> list[Batch]:
    """Return every batch of the whole problem, in order; ranks take them in turn."""
    order = sequence_order(rollout.sequence_count, layout.shuffle_seed)
    result = []
    for group in chunks(order, layout.batch_size):
        pieces = [take_piece(rollout, sequence) for sequence in group]
        result.append(pack(pieces) if layout.packing else pad(pieces, layout.padding_side, pad_id))
    return result


def run_prefill(
    engine: Engine, rollout: Rollout, layout: Layout, sheet: ScoreSheet, consumed: Consumed
) -> tuple[list[int], list[dict[str, Any]]]:
    """Score this rank's batches; return its sequences and the timeline.

    Batch b belongs to rank b mod world, so that sharding changes no batch. All ranks run equally many
    forwards, since a forward of a sharded model is collective: a rank without a batch left repeats the first
    one, unscored.
    """
    world = engine.sharding.world_size
    batches = plan_batches(rollout, layout, engine.pad_id)
    rounds = -(-len(batches) // world)
    sequences: list[int] = []
    timeline = []
    for turn in range(rounds):
        index = turn * world + engine.rank
        started = time.perf_counter()
        if index < len(batches):
            _score_batch(engine, rollout, batches[index], sheet, consumed)
            sequences += [cell.piece.sequence for cell in batches[index].cells]
        else:
            _, seen = engine.forward(batches[0], cache=False)
            consumed.layout(seen, batches[0])
        shape = batches[min(index, len(batches) - 1)].input_ids.shape
        timeline.append(
            {
                "name": "prefill" if index < len(batches) else "prefill without own batch",
                "batch": index,
                "rows": shape[0],
                "columns": shape[1],
                "seconds": time.perf_counter() - started,
            }
        )
    return sequences, timeline


def _score_batch(engine: Engine, rollout: Rollout, batch: Batch, sheet: ScoreSheet, consumed: Consumed) -> None:
    flat, rows, columns = scored_cells(rollout, batch)
    kept = np.unique(columns) if engine.options.logits_to_keep and len(columns) else None
    output, seen = engine.forward(batch, cache=False, columns=kept)
    consumed.batch(seen, batch)
    logits = output.logits
    if kept is not None and logits.shape[1] == len(kept):
        columns = np.searchsorted(kept, columns)
    for start in range(0, len(flat), sheet.row_chunk):
        part = slice(start, start + sheet.row_chunk)
        picked = logits[engine.tensor(rows[part]), engine.tensor(columns[part])]
        sheet.score(flat[part], picked, Phase.PREFILL)


def scored_cells(rollout: Rollout, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (flat token, row, column of the logits that predict it) of every active token in `batch`."""
    flat, rows, columns = [], [], []
    for cell in batch.cells:
        start, stop = cell.piece.start, cell.piece.start + cell.piece.length
        inside = np.flatnonzero(rollout.active[start:stop])
        flat.append(start + inside)
        rows.append(np.full(len(inside), cell.row))
        columns.append(cell.column + inside - 1)
    return np.concatenate(flat), np.concatenate(rows), np.concatenate(columns)

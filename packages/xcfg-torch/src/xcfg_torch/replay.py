"""Forced replay: the frozen tokens through the decode loop, scored from the logits that predict them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from xcfg.identity.rollout import Rollout
from xcfg.schema.names import Phase

from xcfg_torch.batching import Batch, chunks, pad, sequence_order, take_piece
from xcfg_torch.consumed import Consumed
from xcfg_torch.decode import Intervention, Step, decode
from xcfg_torch.engine import Engine
from xcfg_torch.layout import Layout
from xcfg_torch.observe import Seen
from xcfg_torch.scoring import ScoreSheet


def prompt_length(rollout: Rollout, sequence: int) -> int:
    """Return how many tokens are prefilled: those before the first active token.

    Everything after is fed token by token, observations between generated segments included. A sequence
    without active tokens is prefilled whole but for its last token, whose logits score nothing.
    """
    active = np.flatnonzero(rollout.active[rollout.span(sequence)])
    span = rollout.span(sequence)
    return int(active[0]) if len(active) else span.stop - span.start - 1


class ForcedFeed:
    """Feeds the rollout's own tokens. cursor[r]: the flat token that row r's last logits predict."""

    def __init__(self, rollout: Rollout, prompts: Batch, sheet: ScoreSheet, consumed: Consumed, pad_id: int) -> None:
        """Start after the prompts of `prompts`."""
        self.rollout, self.sheet, self.consumed, self.pad_id = rollout, sheet, consumed, pad_id
        self.prompts = prompts
        pieces = [cell.piece for cell in prompts.cells]
        self.cursor = np.asarray([piece.start + piece.length for piece in pieces], dtype=np.int64)
        self.stop = np.asarray([rollout.span(piece.sequence).stop for piece in pieces], dtype=np.int64)
        self.live = np.ones(len(pieces), dtype=np.bool_)
        self.phase = Phase.FIRST_TOKEN

    def next(self, logits: torch.Tensor) -> Step | None:
        """Score the tokens under the cursors, and return them to be fed where another one follows."""
        rows = np.flatnonzero(self.live)
        rows = rows[self.rollout.active[self.cursor[rows]]]
        if len(rows):
            flat = self.cursor[rows]
            self.sheet.score(flat, logits[torch.from_numpy(rows).to(logits.device)], self.phase)
            where = torch.from_numpy(flat)
            self.sheet.columns["step_batch"][where] = int(self.live.sum())
            self.sheet.columns["step_batch_padded"][where] = len(self.live)
        self.phase = Phase.DECODE
        self.live = self.live & (self.cursor + 1 < self.stop)
        return self._step() if bool(self.live.any()) else None

    def entered(self, seen: Seen, batch_mask: NDArray[np.bool_], step: Step | None) -> None:
        """Keep what entered, and move the cursors of the rows that were fed."""
        if step is None:
            self.consumed.batch(seen, self.prompts)
            return
        rows = np.flatnonzero(step.live)
        self.consumed.step(seen, self.cursor[rows], rows, batch_mask)
        self.cursor[rows] += 1

    def _step(self) -> Step:
        tensors = self.rollout.tensors
        safe = np.where(self.live, self.cursor, 0)
        return Step(
            tokens=np.where(self.live, self.rollout.token_ids[safe], self.pad_id),
            positions=np.where(self.live, tensors["position_ids"][safe].astype(np.int64), 0),
            live=self.live.copy(),
            visible=tensors["attention_mask"][safe].astype(np.bool_),
        )


def run_replay(
    engine: Engine,
    rollout: Rollout,
    layout: Layout,
    sheet: ScoreSheet,
    consumed: Consumed,
    intervene: Intervention | None = None,
) -> tuple[list[int], list[dict[str, Any]]]:
    """Replay every sequence in batches of `layout`; return the sequences and the timeline."""
    sheet.track_steps()
    timeline = []
    order = sequence_order(rollout.sequence_count, layout.shuffle_seed)
    for index, group in enumerate(chunks(order, layout.batch_size)):
        started = time.perf_counter()
        pieces = [take_piece(rollout, sequence, prompt_length(rollout, sequence)) for sequence in group]
        prompts = pad(pieces, layout.padding_side, engine.pad_id)
        feed = ForcedFeed(rollout, prompts, sheet, consumed, engine.pad_id)
        steps = decode(engine, prompts, feed, intervene)
        timeline.append(
            {
                "name": "replay",
                "batch": index,
                "rows": prompts.input_ids.shape[0],
                "columns": prompts.input_ids.shape[1],
                "steps": steps,
                "seconds": time.perf_counter() - started,
            }
        )
    return order, timeline

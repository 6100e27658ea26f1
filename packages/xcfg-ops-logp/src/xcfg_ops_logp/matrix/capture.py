"""The backend `xcfg.capture_logp`: keeps the logits that an engine hands to its selected log probability.

What it returns is no log probability but the number of the row, times -2^-20, so that the score of each token says
which captured row is its own, whatever the engine's batches and order were. It is a tool of the matrix: its scores stay
in a folder that the matrix removes.

It has the form of a sharded operator (`xcfg.plugin.protocols.ShardedLogprob`), so that an engine whose vocabulary is
split places it and hands it local columns: where every rank's columns lie is kept too, as the engine said it, right or
wrong. An engine that gathers logits before it calls any operator places nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from xcfg.errors import UsageError
from xcfg.plugin.operators import load_factory

from xcfg_ops_logp.contract.shards import ShardMap
from xcfg_ops_logp.matrix.guarded import Guarded
from xcfg_ops_logp.sharded.exchange import Ranks

PER_PROCESS = 1 << 20
PROCESSES = 15
"""A float32 score column holds integers up to 2^24."""
SCALE = -(2.0**-20)
"""Exact, and what comes out lies where log probabilities do."""


class Capture:
    """One process's share: a file per call.

    logits: [n, V], the columns that take part, of all ranks. selected, value: [n]. first: number of the first row.
    shards: int64 [ranks, 2], (start, stop) of each rank's columns; [0, 2] where nobody placed it. beyond: the largest
    magnitude in columns that the engine hides. vocab, summed: see ShardedLogprob.
    """

    def __init__(self, *, folder: str, factory: str, options: str) -> None:
        """Take an existing folder, and factory and JSON options of the backend whose values are kept."""
        from xcfg.schema.codec import parse_strict

        given: dict[str, Any] = parse_strict(options)
        self.inner = Guarded(load_factory(factory)(**given), factory)
        self.index, self.folder = _claimed(Path(folder))
        self.calls = 0
        self.rows = 0
        self.ranks: Ranks | None = None
        self.start = 0
        self.vocab: int | None = None
        self.summed = 0

    def place(self, group: Any, start: int) -> None:
        """Take where the engine says that this rank's columns lie."""
        self.ranks, self.start = Ranks(group), start

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Keep the operands and the backend's value; return float64 [N], SCALE times the number of each row.

        logits: [N, V / ranks], this rank's columns; selected: int64 [N], global ids.
        """
        count = len(selected)
        if self.rows + count >= PER_PROCESS:
            raise UsageError(
                f"more than {PER_PROCESS} rows in one process", hint="Run the matrix on a rollout with fewer tokens."
            )
        first = self.index * PER_PROCESS + self.rows + 1
        bounds: ShardMap
        bounds, whole = ((), logits) if self.ranks is None else self._whole(self.ranks, logits)
        taken, hidden = whole[:, : self.vocab], whole[:, whole.shape[1] if self.vocab is None else self.vocab :]
        self.summed = taken.shape[1]
        value = self.inner(taken, selected)
        shards = torch.tensor(bounds, dtype=torch.int64).reshape(-1, 2)
        kept = {"logits": taken, "selected": selected, "value": value, "shards": shards}
        document = {name: tensor.detach().cpu().clone() for name, tensor in kept.items()}
        beyond = float(hidden.double().abs().max()) if hidden.numel() else 0.0
        torch.save({**document, "first": first, "beyond": beyond}, self.folder / f"{self.calls:06d}.pt")
        self.calls += 1
        self.rows += count
        return SCALE * torch.arange(first, first + count, dtype=torch.float64, device=logits.device)

    def _whole(self, ranks: Ranks, logits: torch.Tensor) -> tuple[ShardMap, torch.Tensor]:
        """Return all ranks' bounds, and their columns one after the other by where they begin."""
        bounds = ranks.bounds(self.start, logits.shape[1], logits.device)
        shares = ranks.columns(logits, tuple(stop - start for start, stop in bounds))
        return bounds, torch.cat([shares[rank] for rank in sorted(range(len(bounds)), key=bounds.__getitem__)], dim=-1)


def _claimed(folder: Path) -> tuple[int, Path]:
    for index in range(PROCESSES):
        place = folder / f"process-{index:02d}"
        try:
            place.mkdir()
        except FileExistsError:
            continue
        return index, place
    raise UsageError(f"more than {PROCESSES} processes capture logits in {str(folder)!r}")

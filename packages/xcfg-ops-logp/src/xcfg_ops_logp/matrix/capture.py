"""The backend `xcfg.capture_logp`: keeps the logits that an engine hands to its selected log probability.

What it returns is no log probability but the number of the row, times -2^-20, so that the score of each token says
which captured row is its own, whatever the engine's batches and order were. It is a tool of the matrix: its scores stay
in a folder that the matrix removes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from xcfg.errors import UsageError
from xcfg.plugin.operators import load_factory

PER_PROCESS = 1 << 20
PROCESSES = 15
"""A float32 score column holds integers up to 2^24."""
SCALE = -(2.0**-20)
"""Exact, and what comes out lies where log probabilities do."""


class Capture:
    """One process's share: file per call with `logits` [n, V], `selected` [n], `value` [n] and `first`, its row."""

    def __init__(self, *, folder: str, factory: str, options: str) -> None:
        """Take an existing folder, and factory and JSON options of the backend whose values are kept."""
        from xcfg.schema.codec import parse_strict

        given: dict[str, Any] = parse_strict(options)
        self.inner = load_factory(factory)(**given)
        self.index, self.folder = _claimed(Path(folder))
        self.calls = 0
        self.rows = 0

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Keep the operands and the backend's value; return float64 [N], SCALE times the number of each row."""
        count = len(selected)
        if self.rows + count >= PER_PROCESS:
            raise UsageError(
                f"more than {PER_PROCESS} rows in one process", hint="Run the matrix on a rollout with fewer tokens."
            )
        first = self.index * PER_PROCESS + self.rows + 1
        value = self.inner(logits, selected)
        kept = {"logits": logits, "selected": selected, "value": value}
        document = {name: tensor.detach().cpu().clone() for name, tensor in kept.items()}
        torch.save({**document, "first": first}, self.folder / f"{self.calls:06d}.pt")
        self.calls += 1
        self.rows += count
        return SCALE * torch.arange(first, first + count, dtype=torch.float64, device=logits.device)


def _claimed(folder: Path) -> tuple[int, Path]:
    for index in range(PROCESSES):
        place = folder / f"process-{index:02d}"
        try:
            place.mkdir()
        except FileExistsError:
            continue
        return index, place
    raise UsageError(f"more than {PROCESSES} processes capture logits in {str(folder)!r}")

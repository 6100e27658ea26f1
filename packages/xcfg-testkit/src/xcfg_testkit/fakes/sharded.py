"""A good sharded `selected_logprob`, and ones whose claims hold on one rank and not over ranks."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from xcfg.schema.operators import OperatorBackendDescriptor

from xcfg_testkit.fakes import operators

Tensor = torch.Tensor


def descriptor(name: str, **fields: object) -> OperatorBackendDescriptor:
    """Return a descriptor of the fake `name` of this module, which claims all three properties."""
    own = {"factory": f"{__name__}:{name}", "dtypes": ("float32",)}
    claims = {"properties": ("run-to-run", "batch-invariant", "tp-invariant")}
    return operators.descriptor(name, **{**own, **claims, **fields})


class Gathered:
    """Keeps every rule: all columns are gathered, and summed as one rank would."""

    def __init__(self) -> None:
        """Stand alone."""
        self.group: Any = None
        self.start = 0
        self.vocab: int | None = None
        self.summed = 0

    def place(self, group: Any, start: int) -> None:
        """Take the ranks of the shards."""
        self.group, self.start = group, start

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return 1 if self.group is None else int(dist.get_world_size(self.group))

    def whole(self, logits: Tensor) -> Tensor:
        """Return the columns of all ranks that take part."""
        if self.size == 1:
            return logits[:, : self.vocab]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, (self.start, logits), group=self.group)
        return torch.cat([columns for _, columns in sorted(found, key=lambda item: item[0])], dim=1)[:, : self.vocab]

    def __call__(self, logits: Tensor, selected: Tensor) -> Tensor:
        """Return float32 [N]."""
        whole = self.whole(logits)
        self.summed = whole.shape[1]
        return operators.score(whole, selected).float()


class AddsRanks(Gathered):
    """Adds up its own columns in float32, and ranks one after the other: another order at every size."""

    def __call__(self, logits: Tensor, selected: Tensor) -> Tensor:
        """Return float32 [N]."""
        whole = self.whole(logits)
        operators.check(whole, selected)
        top = whole.double().amax(-1, keepdim=True).float()
        own = logits[:, : max(0, whole.shape[1] - self.start)].float() - top
        total = own.exp().cumsum(-1)[:, -1] if own.shape[1] else torch.zeros_like(top[:, 0])
        if self.size > 1:
            sums = [torch.empty_like(total) for _ in range(self.size)]
            dist.all_gather(sums, total, group=self.group)
            total = torch.stack(sums).cumsum(0)[-1]
        return (whole.float() - top).gather(-1, selected[:, None])[:, 0] - total.log()


class DriftsOverRanks(Gathered):
    """Has noise in its last bit where ranks exchange."""

    def __call__(self, logits: Tensor, selected: Tensor) -> Tensor:
        """Return float32 [N]."""
        found = super().__call__(logits, selected)
        noise = int.from_bytes(os.urandom(2), "big") / 2**16 if self.size > 1 else 0.0
        return found * (1 + 1e-6 * noise)


class CountsRowsOverRanks(Gathered):
    """Has another last bit where ranks exchange more rows."""

    def __call__(self, logits: Tensor, selected: Tensor) -> Tensor:
        """Return float32 [N]."""
        found = super().__call__(logits, selected)
        return found * (1 + 1e-6 * (len(logits) > 1)) if self.size > 1 else found


gathered, adds_ranks = Gathered, AddsRanks
drifts_over_ranks, counts_rows_over_ranks = DriftsOverRanks, CountsRowsOverRanks

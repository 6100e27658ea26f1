"""Selected log probabilities over a vocabulary that is split across ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Sharded:
    """An operator that is handed this rank's columns instead of all of them.

    start: first vocabulary entry of the shard. vocab: entries that take part; columns from there on are hidden, None
    hides nothing. summed: how many columns, over all ranks, the last call left unmasked, counted in what it summed.
    """

    def __init__(self) -> None:
        """Stand alone: one rank, no padding."""
        self.group: Any = None
        self.start = 0
        self.vocab: int | None = None
        self.summed = 0

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Logits [N, V / ranks] floating, selected int64 [N] global ids -> float32 [N], nats."""
        raise NotImplementedError

    def place(self, group: Any, start: int) -> None:
        """Say where the shard lies; the adapter calls it once the ranks are joined."""
        self.group, self.start = group, start

    def prepared(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Return [N, V / ranks] as a float32 copy with hidden columns at -inf. Raises ValueError for a foreign id."""
        width = logits.shape[-1]
        entries = self.vocab if self.vocab is not None else width * self.ranks
        if len(selected) and not 0 <= int(selected.min()) <= int(selected.max()) < entries:
            raise ValueError(f"a selected id lies outside the vocabulary of {entries}")
        columns = torch.arange(self.start, self.start + width, device=logits.device)
        values = logits.to(torch.float32, copy=True).masked_fill_(columns >= entries, -torch.inf)
        if len(values):
            self.summed = self._unmasked(values)
        return values

    def _unmasked(self, values: torch.Tensor) -> int:
        """Return how many columns of all shards are not -inf in every row."""
        count = (values.amax(dim=0) != -torch.inf).sum()
        if self.ranks > 1:
            dist.all_reduce(count, group=self.group)
        return int(count)

    @property
    def ranks(self) -> int:
        """How many shards there are."""
        return 1 if self.group is None else int(dist.get_world_size(self.group))


class VocabParallel(Sharded):
    """The backend `megatron.vocab_parallel_logprob`."""

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Logits [N, V / ranks] floating, selected int64 [N] global ids -> float32 [N], nats, equal on every rank.

        Raises ValueError for an id that no rank's real vocabulary holds.
        """
        values = self.prepared(logits, selected)
        largest = values.amax(dim=-1)
        self._reduce(largest, dist.ReduceOp.MAX)
        total = (values - largest[:, None]).exp().sum(dim=-1)
        self._reduce(total, dist.ReduceOp.SUM)
        width = values.shape[-1]
        local = selected - self.start
        inside = (local >= 0) & (local < width)
        picked = values.gather(-1, local.clamp(0, width - 1)[:, None])[:, 0]
        picked = torch.where(inside, picked, torch.zeros_like(picked))
        self._reduce(picked, dist.ReduceOp.SUM)
        return picked - largest - total.log()

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> None:
        if self.ranks > 1:
            dist.all_reduce(tensor, operation, group=self.group)

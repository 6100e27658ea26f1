"""Selected log probabilities over a vocabulary that is split across ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class VocabParallel:
    """The backend `megatron.vocab_parallel_logprob`; the adapter sets `group` and `start` once the ranks are joined.

    start: first vocabulary entry of this rank's shard. vocab: real entries; columns from there on are padding.
    """

    def __init__(self) -> None:
        """Stand alone: one rank, no padding."""
        self.group: Any = None
        self.start = 0
        self.vocab: int | None = None

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Logits [N, V / ranks] floating, selected int64 [N] global ids -> float32 [N], nats, equal on every rank.

        Raises ValueError for an id that no rank's real vocabulary holds.
        """
        values = logits.float()
        width = values.shape[-1]
        entries = self.vocab if self.vocab is not None else width * self._ranks
        if len(selected) and not 0 <= int(selected.min()) <= int(selected.max()) < entries:
            raise ValueError(f"a selected id lies outside the vocabulary of {entries}")
        if self.vocab is not None and self.start + width > self.vocab:
            columns = torch.arange(self.start, self.start + width, device=values.device)
            values = values.masked_fill(columns >= self.vocab, -torch.inf)
        largest = values.amax(dim=-1)
        self._reduce(largest, dist.ReduceOp.MAX)
        total = (values - largest[:, None]).exp().sum(dim=-1)
        self._reduce(total, dist.ReduceOp.SUM)
        local = selected - self.start
        inside = (local >= 0) & (local < width)
        picked = values.gather(-1, local.clamp(0, width - 1)[:, None])[:, 0]
        picked = torch.where(inside, picked, torch.zeros_like(picked))
        self._reduce(picked, dist.ReduceOp.SUM)
        return picked - largest - total.log()

    @property
    def _ranks(self) -> int:
        return 1 if self.group is None else int(dist.get_world_size(self.group))

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> None:
        if self._ranks > 1:
            dist.all_reduce(tensor, operation, group=self.group)

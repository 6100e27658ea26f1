"""What ranks tell each other: where their columns lie, and tensors to add, to compare or to collect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from xcfg.errors import UsageError


@dataclass(frozen=True)
class Shards:
    """All shards of one vocabulary. bounds: (start, stop) of each rank; order: ranks by where they start."""

    bounds: tuple[tuple[int, int], ...]
    order: tuple[int, ...]

    @property
    def total(self) -> int:
        """Columns of all shards."""
        return max(stop for _, stop in self.bounds)


class Ranks:
    """The ranks of a tensor-parallel group; None is one rank alone."""

    def __init__(self, group: Any = None) -> None:
        """Take the group that the adapter hands over."""
        self.group = group
        self.size = 1 if group is None else int(dist.get_world_size(group))

    def bounds(self, start: int, width: int, device: torch.device) -> tuple[tuple[int, int], ...]:
        """Return (start, stop) of every rank's columns, in the order of ranks, as each says of itself."""
        mine = torch.tensor([start, start + width], dtype=torch.int64, device=device)
        return tuple((int(item[0]), int(item[1])) for item in self.gather(mine))

    def shards(self, start: int, width: int, device: torch.device) -> Shards:
        """Return where all ranks' columns lie; UsageError, on every rank, unless they tile the vocabulary exactly."""
        bounds = self.bounds(start, width, device)
        order = sorted(range(len(bounds)), key=lambda rank: bounds[rank])
        edge = 0
        for rank in order:
            first, stop = bounds[rank]
            if first != edge or stop <= first:
                raise UsageError(
                    f"rank {rank} holds the columns [{first}, {stop}) of the vocabulary, where {edge} comes next",
                    hint=f"Shards must tile the vocabulary without gap or overlap; they are {bounds}.",
                )
            edge = stop
        return Shards(bounds, tuple(order))

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add in place over ranks, in the order that the library takes; return the tensor."""
        if self.size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.SUM, group=self.group)
        return tensor

    def largest(self, tensor: torch.Tensor) -> torch.Tensor:
        """Take the maximum in place over ranks, exact in every order; return the tensor."""
        if self.size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group)
        return tensor

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, which have one shape."""
        if self.size == 1:
            return [tensor]
        found = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(found, tensor.contiguous(), group=self.group)
        return found

    def columns(self, values: torch.Tensor, widths: tuple[int, ...]) -> list[torch.Tensor]:
        """Return [n, widths[r]] of each rank r, in the order of ranks; narrower ones travel padded."""
        widest = max(widths)
        short = widest - values.shape[1]
        padded = torch.nn.functional.pad(values, (0, short)) if short else values
        return [item[:, :width] for item, width in zip(self.gather(padded), widths, strict=True)]

"""The ranks of one Megatron-core engine: joining, coordinates, and which columns a context-parallel rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from xcfg.plugin.protocols import RankContext


@dataclass(frozen=True)
class Ranks:
    """Where this rank stands: rank and world, and its place in the tensor and context groups."""

    rank: int
    world: int
    tensor_rank: int
    tensor: int
    context_rank: int
    context: int

    @property
    def tensor_group(self) -> Any:
        """The tensor-parallel process group."""
        from megatron.core import parallel_state

        return parallel_state.get_tensor_model_parallel_group()

    @property
    def context_group(self) -> Any:
        """The context-parallel process group."""
        from megatron.core import parallel_state

        return parallel_state.get_context_parallel_group()

    @property
    def coordinates(self) -> dict[str, int]:
        """The place in every dimension that xcfg names."""
        return {"dp": 0, "pp": 0, "tp": self.tensor_rank, "cp": self.context_rank, "ep": 0}


def join(context: RankContext, tensor: int, seed: int) -> Ranks:
    """Join the ranks of this engine; every rank that is not of the tensor dimension is of the context dimension."""
    from megatron.core import parallel_state, tensor_parallel

    torch.manual_seed(seed)
    on_cuda = context.device.startswith("cuda")
    if on_cuda:
        torch.cuda.set_device(context.device)
    dist.init_process_group(
        "nccl" if on_cuda else "gloo",
        init_method=context.rendezvous,
        rank=context.rank,
        world_size=context.world_size,
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor, context_parallel_size=context.world_size // tensor
    )
    if on_cuda:
        tensor_parallel.model_parallel_cuda_manual_seed(seed)
    else:
        from megatron.core.tensor_parallel.random import initialize_rng_tracker

        initialize_rng_tracker(inference_rng_tracker=True)
    return Ranks(
        rank=context.rank,
        world=context.world_size,
        tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
        tensor=tensor,
        context_rank=parallel_state.get_context_parallel_rank(),
        context=context.world_size // tensor,
    )


def leave() -> None:
    """Destroy the process groups of this rank, as far as they were made."""
    try:
        from megatron.core import parallel_state
    except ImportError:
        return
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def zigzag(length: int, rank: int, ranks: int) -> torch.Tensor:
    """Return int64 [length / ranks]: the columns of `rank`, its chunk from the front and its mirror from the end.

    length is a multiple of 2 * ranks. One rank holds all columns in order.
    """
    if ranks == 1:
        return torch.arange(length)
    chunks = torch.arange(length).chunk(2 * ranks)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])

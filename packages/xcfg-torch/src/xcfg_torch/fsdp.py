"""FSDP2 (`fully_shard`) around a scoring model: one shard group per decoder block, one for the rest.

Numbers do not change with sharding: every block is gathered before it runs. So each rank runs whole batches,
and the evidence is that local parameters are fewer than all, and that all-gathers really ran.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from xcfg.errors import LaunchError
from xcfg.plugin.protocols import RankContext

from xcfg_torch.load import Anatomy
from xcfg_torch.mixed_precision import MixedPrecision

JOIN_SECONDS = 120


class GatherCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts all-gathers while active."""

    def __init__(self) -> None:
        """Start at zero."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.all_gathers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count `func` when it is an all-gather and run it."""
        if func.namespace in ("c10d", "_c10d_functional"):
            self.all_gathers += int("allgather" in func.__name__ or "all_gather" in func.__name__)
        return func(*args, **(kwargs or {}))


class Sharding:
    """No sharding: the common form, which the sharded one refines."""

    name = "unsharded"
    world_size = 1
    all_gathers = 0

    def __init__(self, total_parameters: int) -> None:
        """Keep the number of parameters of the whole model."""
        self.total_parameters = total_parameters

    def counting(self) -> AbstractContextManager[Any]:
        """Count collectives while a forward runs."""
        return contextlib.nullcontext()

    def settle(self) -> None:
        """Bring parameters to their resting form, so that folds before and after are of the same tensors."""

    def clear(self) -> None:
        """Forget counts."""

    def close(self) -> None:
        """Leave the process group."""


class FullySharded(Sharding):
    """FSDP2 over all ranks of this worker."""

    name = "fsdp"

    def __init__(
        self, parts: Anatomy, precision: MixedPrecision, *, reshard: bool, world_size: int, device: str
    ) -> None:
        """Shard the model of `parts` in place. reshard: free a block's gathered parameters after its forward."""
        super().__init__(parameter_count(parts.model))
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.world_size = world_size
        self.counter = GatherCounter()
        mesh = init_device_mesh(torch.device(device).type, (world_size,))
        arguments: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": reshard}
        for block in parts.blocks:
            fully_shard(block, mp_policy=precision.policy(root=False), **arguments)
        self.root: Any = fully_shard(parts.model, mp_policy=precision.policy(root=True), **arguments)

    @property
    def all_gathers(self) -> int:  # type: ignore[override]
        """All-gathers since the last `clear`."""
        return self.counter.all_gathers

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self.counter:
            yield

    def counting(self) -> AbstractContextManager[Any]:
        """Count collectives while a forward runs."""
        return self._counted()

    def settle(self) -> None:
        """Free every gathered parameter."""
        from torch.distributed.fsdp import FSDPModule

        for module in self.root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def clear(self) -> None:
        """Forget counts."""
        self.counter.all_gathers = 0

    def close(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()


def join(context: RankContext) -> None:
    """Join the process group of this worker: NCCL on CUDA, gloo on a CPU. Raises LaunchError."""
    backend = "nccl" if context.device.startswith("cuda") else "gloo"
    try:
        dist.init_process_group(
            backend,
            init_method=context.rendezvous,
            rank=context.rank,
            world_size=context.world_size,
            timeout=timedelta(seconds=JOIN_SECONDS),
        )
    except (RuntimeError, ValueError) as error:
        raise LaunchError(
            f"rank {context.rank} of {context.world_size} could not join over {backend}: {error}",
            hint="Every rank must start and reach the same rendezvous file.",
        ) from error


def parameter_count(model: Any) -> int:
    """Return the number of parameters, each tied one once."""
    return sum(parameter.numel() for parameter in model.parameters())


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a DTensor, and any other tensor as it is."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def placements(model: Any) -> dict[str, int]:
    """Return how many parameters lie in which placement, e.g. {"Shard(dim=0)": 52}."""
    found: dict[str, int] = {}
    for parameter in model.parameters():
        spec = getattr(parameter, "placements", None)
        # str(Shard(0)) is "S(0)" in some versions of torch and "Shard(dim=0)" in others.
        name = ", ".join(_placement_name(item) for item in spec) if spec is not None else "plain tensor"
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def _placement_name(placement: Any) -> str:
    dimension = getattr(placement, "dim", None)
    return type(placement).__name__ + ("" if dimension is None else f"(dim={dimension})")

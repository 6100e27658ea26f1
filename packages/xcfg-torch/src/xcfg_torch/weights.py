"""What the engine's weights are, tensor by tensor, and whether a score left everything as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from xcfg.identity.attest import fold, weight_digest
from xcfg.schema.worker import WeightReport

from xcfg_torch.fsdp import Sharding, local
from xcfg_torch.load import DTYPES, dtype_name
from xcfg_torch.mixed_precision import computing_tensors, live_policies


def tied_names(model: Any) -> dict[str, str]:
    """Return alias -> first name for parameters that are the same object (tied embeddings)."""
    first: dict[int, str] = {}
    aliases = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)
        if owner != name:
            aliases[name] = owner
    return aliases


def weight_report(model: Any, dtype: str, sharding: Sharding, aliases: dict[str, str]) -> WeightReport:
    """Return the digest of every full tensor by its Hugging Face name, as it computes; collective when sharded.

    Sharded master weights are not what computes: a forward uses their cast, gathered. So the gathered tensors are
    digested as they are found, and the report names their dtype, `dtype` only where they have several.
    """
    tensors: dict[str, str] = {}
    held = sum(local(parameter).numel() for parameter in model.parameters())
    sharded, found = bool(live_policies(model)), set()
    for name, full in computing_tensors(model):
        found.add(dtype_name(full.dtype))
        tensors[name] = weight_digest(full.detach() if sharded else _cast(full.detach(), dtype))
    if sharded and len(found) == 1:
        (dtype,) = found
    stored = model.state_dict(keep_vars=True)
    for name, buffer in model.named_buffers():
        if name in stored:
            tensors[name] = weight_digest(_cast(buffer.detach(), dtype))
    return WeightReport(
        method="digest",
        dtype=dtype,
        tensors=tensors,
        aliases=aliases,
        fold=local_fold(model),
        local_parameters=held,
        total_parameters=sharding.total_parameters,
    )


def _cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return tensor.to(DTYPES[dtype]) if tensor.is_floating_point() else tensor


def _local_tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        yield name, local(parameter)
    yield from model.named_buffers()


def local_fold(model: Any) -> str:
    """Return a cheap digest of this rank's parameters and buffers."""
    return fold(_local_tensors(model))


@dataclass(frozen=True)
class State:
    """What a score must not change. modes: training flags; gradients: parameters that hold or want one."""

    fold: str
    rng: str
    modes: str
    gradients: int

    def changes(self, after: State) -> list[str]:
        """Return the names of the fields that differ."""
        return [name for name in ("fold", "rng", "modes", "gradients") if getattr(self, name) != getattr(after, name)]


def read_state(model: Any, known_fold: str = "") -> State:
    """Return the state of the engine now; known_fold: of its weights, where they were folded a moment ago."""
    modes = bytes(module.training for module in model.modules())
    wanting = sum(parameter.grad is not None or parameter.requires_grad for parameter in model.parameters())
    return State(known_fold or local_fold(model), rng_digest(), hashlib.sha256(modes).hexdigest()[:16], wanting)


def rng_digest() -> str:
    """Return a digest of torch's generator states, CPU and every CUDA device in use."""
    state = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for item in torch.cuda.get_rng_state_all():
            state.update(item.cpu().numpy().tobytes())
    return state.hexdigest()[:16]

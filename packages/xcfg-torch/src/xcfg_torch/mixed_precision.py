"""The mixed precision of FSDP2: what is asked for, the policy that is built from it, and what the live model shows.

A trainer keeps float32 master weights in shards and computes in bfloat16: every block's shards are cast when they are
gathered. What is cast to is `training.compute_dtype`; the knobs here say in what the shards lie and what the model
returns. Without a policy shards lie in the compute dtype and nothing is cast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from xcfg.schema._base import Value

from xcfg_torch.load import DTYPES, dtype_name
from xcfg_torch.mixed_knobs import MASTER, OUTPUT, SAME, UNCAST
from xcfg_torch.options import TorchOptions


@dataclass(frozen=True)
class MixedPrecision:
    """Names of dtypes. stored: of the shards. computed: of the gathered parameters. returned: None is uncast."""

    stored: str
    computed: str
    returned: str | None
    reduced: str | None
    cast_forward_inputs: bool

    def policy(self, *, root: bool) -> Any:
        """Return torch's MixedPrecisionPolicy of one shard group.

        Only the root casts what it returns: a block's successor would cast it back, and the norm after the last block,
        which lies in the root's group, would be given another dtype than its weights have.
        """
        from torch.distributed.fsdp import MixedPrecisionPolicy

        return MixedPrecisionPolicy(
            param_dtype=None if self.stored == self.computed else DTYPES[self.computed],
            reduce_dtype=None if self.reduced is None else DTYPES[self.reduced],
            output_dtype=DTYPES[self.returned] if root and self.returned is not None else None,
            cast_forward_inputs=self.cast_forward_inputs,
        )


def asked_precision(knobs: dict[str, Value], options: TorchOptions, computed: str) -> MixedPrecision:
    """Return what the knobs and options of a sharded side ask for. computed: the compute dtype."""
    stored, returned = knobs.get(MASTER, SAME), knobs.get(OUTPUT, UNCAST)
    return MixedPrecision(
        stored=computed if stored == SAME else str(stored),
        computed=computed,
        returned=None if returned == UNCAST else str(returned),
        reduced=options.fsdp_reduce_dtype,
        cast_forward_inputs=options.fsdp_cast_forward_inputs,
    )


def live_policies(model: Any) -> Counter[str]:
    """Return the policies of the FSDP states in `model`, spelled out, with how many states hold each."""
    return Counter(_spelled(module._get_fsdp_state()._mp_policy) for module in _sharded(model))


def returned_by_root(model: Any) -> str | None:
    """Return the output_dtype in the live policy of the outermost FSDP state; None when nothing is cast."""
    policy = next((module._get_fsdp_state()._mp_policy for module in _sharded(model)), None)
    output = getattr(policy, "output_dtype", None)
    return None if output is None else dtype_name(output)


def computing_tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter as the forward uses it, by name: gathered and cast, one shard group at a time.

    Collective when the model is sharded: every rank must consume all of it.
    """
    groups = list(_sharded(model))
    if not groups:
        yield from model.named_parameters()
    for group in groups:
        group.unshard()
        for name, parameter in model.named_parameters():
            if not hasattr(parameter, "full_tensor"):
                yield name, parameter.clone()  # whoever views a gathered tensor as numpy keeps FSDP from freeing it
        group.reshard()


def _sharded(model: Any) -> Iterator[Any]:
    from torch.distributed.fsdp import FSDPModule

    return (module for module in model.modules() if isinstance(module, FSDPModule))


def _spelled(policy: Any) -> str:
    names = ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs")
    values = ((name, getattr(policy, name)) for name in names)
    return " ".join(
        f"{name}={dtype_name(value) if isinstance(value, torch.dtype) else value}" for name, value in values
    )

"""Operators in Megatron-core's places: modules that call an injected operator, and the live slots they stand in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.tensor_parallel.mappings import (
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.mlp import MLP
from xcfg.plugin.operators import BoundOperator

from xcfg_megatron.backends import OWN


class Injected:
    """A module whose arithmetic is `operator`; each engine has subclasses of its own, made by `classes`."""

    operator: BoundOperator


class InjectedNorm(Injected, torch.nn.Module):
    """Any norm slot: norm(x [..., H], weight [H], eps)."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        """Make the weight that the conversion loads."""
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        return self.operator(x, self.weight, self.eps)  # type: ignore[no-any-return]


class InjectedAttention(Injected, torch.nn.Module):
    """The core attention: one call per sequence, and per contiguous piece of it where the context is split.

    Under context parallelism keys and values of all ranks are gathered and put in order first; every rank computes
    the queries that it holds, whole rows, so nothing is merged.
    """

    def __init__(self, config: Any, layer_number: int, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        """Take the scale; the layer number is of no use, since nothing is scaled by it."""
        super().__init__()
        self.softmax_scale = softmax_scale or config.kv_channels**-0.5
        self.ranks = config.context_parallel_size

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **named: Any
    ) -> torch.Tensor:
        """Take query [s, b, Hq, D], key and value [s, b, Hkv, D] -> [s, b, Hq * D]; causal."""
        if named.get("packed_seq_params") is not None:
            raise NotImplementedError("packed sequences are not part of the operation `attention`")
        columns, batch = query.shape[:2]
        pieces = [(0, columns, 0)]
        if self.ranks > 1:
            key, value, pieces = self._whole(key, value, columns)
        rows = []
        for row in range(batch):
            parts = [
                self.operator(query[start:stop, row], key[:, row], value[:, row], self.softmax_scale, first)
                for start, stop, first in pieces
            ]
            rows.append(torch.cat(parts))
        return torch.stack(rows, dim=1).reshape(columns, batch, -1)

    def _whole(
        self, key: torch.Tensor, value: torch.Tensor, columns: int
    ) -> tuple[torch.Tensor, torch.Tensor, list[tuple[int, int, int]]]:
        from megatron.core import parallel_state

        from xcfg_megatron.parallel import zigzag

        group = parallel_state.get_context_parallel_group()
        order = torch.cat([zigzag(columns * self.ranks, rank, self.ranks) for rank in range(self.ranks)])
        back = order.argsort().to(key.device)
        half, rank = columns // 2, group.rank()
        pieces = [(0, half, rank * half), (half, columns, (2 * self.ranks - 1 - rank) * half)]
        return _gathered(key, group)[back], _gathered(value, group)[back], pieces


def _gathered(x: torch.Tensor, group: Any) -> torch.Tensor:
    parts = [torch.empty_like(x.contiguous()) for _ in range(group.size())]
    torch.distributed.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts)


class InjectedRowLinear(Injected, RowParallelLinear):  # type: ignore[misc]
    """A row-parallel linear layer: partial products by the operator, added over ranks in its dtype, rounded once."""

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Take [s, b, K / ranks] -> ([s, b, N], no bias)."""
        partial = self.operator(input_, self.weight)
        add = reduce_scatter_to_sequence_parallel_region if self.sequence_parallel else _add
        return add(partial, group=self.tp_group).to(input_.dtype), None


def _add(partial: torch.Tensor, group: Any) -> torch.Tensor:
    return reduce_from_tensor_model_parallel_region(partial, group=group)  # type: ignore[no-any-return]


class InjectedMLP(Injected, MLP):  # type: ignore[misc]
    """Megatron's MLP with the operator between its two linear layers, in place of Megatron's gated activation."""

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        """Take [s, b, H] -> ([s, b, H], no bias)."""
        gate, up = self.linear_fc1(hidden_states)[0].chunk(2, dim=-1)
        output, _bias = self.linear_fc2(self.operator(gate, up))
        return output, None


MODULES: dict[str, type[Injected]] = {
    "norm": InjectedNorm,
    "activation": InjectedMLP,
    "attention": InjectedAttention,
    "row_linear": InjectedRowLinear,
}


def classes(operators: Mapping[str, BoundOperator]) -> dict[str, type[Injected]]:
    """Return operation -> a class that calls its operator, for all that are not the engine's own."""
    return {
        operation: type(MODULES[operation].__name__, (MODULES[operation],), {"operator": operator})
        for operation, operator in operators.items()
        if operation in MODULES and operator.binding.backend_id != OWN[operation]
    }


def slots(model: Any, operation: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, live module) of every place in which `operation` runs."""
    for number, layer in enumerate(model.decoder.layers):
        attention, mlp = layer.self_attention, layer.mlp
        found = {
            "norm": {
                "input_layernorm": layer.input_layernorm,
                "pre_mlp_layernorm": layer.pre_mlp_layernorm,
                "q_layernorm": attention.q_layernorm,
                "k_layernorm": attention.k_layernorm,
            },
            "attention": {"core_attention": attention.core_attention},
            "row_linear": {"linear_proj": attention.linear_proj, "linear_fc2": mlp.linear_fc2},
            "activation": {"mlp": mlp},
        }[operation]
        for name, module in found.items():
            if module is not None and type(module).__name__ != "IdentityOp":
                yield f"layers.{number}.{name}", module
    if operation == "norm" and model.decoder.final_layernorm is not None:
        yield "final_layernorm", model.decoder.final_layernorm

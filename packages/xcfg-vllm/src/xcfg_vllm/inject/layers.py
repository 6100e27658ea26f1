"""Norm, activation and rotary embedding in place of vLLM's layers, through its registry of out-of-tree ops.

vLLM makes an instance of ours wherever a model asks for the layer of that name. Which method it then calls depends
on the platform and on `custom_ops`; all of them are the injected operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from xcfg.plugin.operators import BoundOperator

METHODS = ("forward_native", "forward_cpu", "forward_cuda", "forward_oot")


def install(operation: str, operator: BoundOperator) -> Callable[[], object]:
    """Register the layer of `operation`; return the undoing, for the layers that are made from then on."""
    from vllm.model_executor import custom_op

    name = {"norm": _norm, "activation": _activation, "rotary": _rotary}[operation](operator)
    return lambda: custom_op.op_registry_oot.pop(name, None)


def _everywhere(layer: type, method: Any) -> None:
    for name in METHODS:
        setattr(layer, name, method)


def _norm(operator: BoundOperator) -> str:
    from vllm.model_executor.layers.layernorm import RMSNorm

    class InjectedRMSNorm(RMSNorm):  # type: ignore[misc]  # vllm is not typed here
        """norm(x [..., H], weight [H], eps); a residual is added first, in the dtype of x."""

    def forward(layer: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if layer.variance_size_override is not None or not layer.weight.numel():
            raise ValueError("an injected norm takes the whole last dimension and a weight; this layer has neither")
        if residual is None:
            return operator(x, layer.weight.data, layer.variance_epsilon)
        total = x + residual
        return operator(total, layer.weight.data, layer.variance_epsilon), total

    _everywhere(InjectedRMSNorm, forward)
    RMSNorm.register_oot(_named(InjectedRMSNorm))
    return "RMSNorm"


def _activation(operator: BoundOperator) -> str:
    from vllm.model_executor.layers.activation import SiluAndMul

    class InjectedSiluAndMul(SiluAndMul):  # type: ignore[misc]  # vllm is not typed here
        """activation(gate [..., d], up [..., d]); vLLM hands both over in one tensor [..., 2 d]."""

    def forward(layer: Any, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        found: torch.Tensor = operator(gate, up)
        return found

    _everywhere(InjectedSiluAndMul, forward)
    SiluAndMul.register_oot(_named(InjectedSiluAndMul))
    return "SiluAndMul"


def _rotary(operator: BoundOperator) -> str:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    class InjectedRotaryEmbedding(RotaryEmbedding):  # type: ignore[misc]  # vllm is not typed here
        """rotary(query [T, Hq, D], key [T, Hk, D], cos [T, D/2], sin [T, D/2]), half-split layout."""

    def forward(layer: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None) -> Any:
        if key is None or not layer.is_neox_style or layer.rotary_dim != layer.head_size:
            raise ValueError("an injected rotary embedding turns whole heads of queries and keys in half-split layout")
        cos, sin = layer.cos_sin_cache[positions.flatten()].to(query.device).chunk(2, dim=-1)
        heads = (positions.numel(), -1, layer.head_size)
        turned, turned_key = operator(query.reshape(heads), key.reshape(heads), cos, sin)
        return turned.reshape(query.shape), turned_key.reshape(key.shape)

    _everywhere(InjectedRotaryEmbedding, forward)
    RotaryEmbedding.register_oot(_named(InjectedRotaryEmbedding))
    return "RotaryEmbedding"


def _named(layer: type) -> type:
    """Give a class that was made in a function the name by which read-back knows it."""
    layer.__module__, layer.__qualname__ = __name__, layer.__name__
    return layer

"""Hooks and counters on a live model. They read and count; none changes a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xcfg_megatron.backends import OWN
from xcfg_megatron.engine import Engine
from xcfg_megatron.operators import slots

COUNTED = {
    "fused_swiglu": "mlp.bias_swiglu_impl",
    "all_reduce": "mappings._reduce",
    "reduce_scatter": "mappings._reduce_scatter_along_first_dim",
    "all_gather": "mappings._gather_along_first_dim",
}
"""Counter -> the function of Megatron-core that is wrapped so that its calls can be counted."""


def watch(engine: Engine) -> None:
    """Watch what enters, in which dtype linear layers and softmax compute, every operator slot, every collective."""
    engine.model.embedding.register_forward_pre_hook(_entering(engine), with_kwargs=True)
    engine.model.rotary_pos_emb.register_forward_pre_hook(_rotating(engine), with_kwargs=True)
    for module in engine.model.decoder.modules():
        kind = type(module).__name__
        if kind.endswith(("ParallelLinear", "LayerNormColumnParallelLinear", "InjectedRowLinear")):
            module.register_forward_pre_hook(_linear(engine))
        elif kind == "FusedScaleMaskSoftmax":
            _softmax(engine, module)
    for operation in OWN:
        for _, module in slots(engine.model, operation):
            module.register_forward_pre_hook(_slot(engine, f"slot.{operation}"))
    _functions(engine)


def _entering(engine: Engine) -> Callable[..., None]:
    def hook(module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids: torch.Tensor = named["input_ids"] if "input_ids" in named else positional[0]
        engine.entered.append(ids.detach().clone())
        engine.forwards += 1

    return hook


def _rotating(engine: Engine) -> Callable[..., None]:
    def hook(module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        length = named["max_seq_len"] if "max_seq_len" in named else positional[0]
        offset = named.get("offset", positional[1] if len(positional) > 1 else 0)
        engine.rotary.append((int(length), int(offset)))

    return hook


def _linear(engine: Engine) -> Callable[..., None]:
    def hook(module: Any, positional: tuple[Any, ...]) -> None:
        engine.linear_inputs[str(positional[0].dtype).removeprefix("torch.")] += 1

    return hook


def _slot(engine: Engine, name: str) -> Callable[..., None]:
    def hook(module: Any, positional: tuple[Any, ...]) -> None:
        engine.calls[name] += 1

    return hook


def _softmax(engine: Engine, module: Any) -> None:
    """Count the softmax, its CUDA kernel, and the dtype in which scores reach the mask just before it."""
    plain_mask, plain_fused = module.mask_func, module.forward_fused_softmax

    def mask(scores: torch.Tensor, hidden: torch.Tensor) -> Any:
        engine.softmax_inputs[str(scores.dtype).removeprefix("torch.")] += 1
        return plain_mask(scores, hidden)

    def fused(*arguments: Any) -> Any:
        engine.calls["fused_softmax"] += 1
        return plain_fused(*arguments)

    module.mask_func, module.forward_fused_softmax = mask, fused
    module.register_forward_pre_hook(_slot(engine, "softmax"))


def _functions(engine: Engine) -> None:
    """Count functions of Megatron-core through the names by which its modules find them; for this process, for good."""
    from megatron.core.tensor_parallel import mappings
    from megatron.core.transformer import mlp

    homes = {"mlp": mlp, "mappings": mappings}
    for label, place in COUNTED.items():
        home, name = place.split(".")
        plain = getattr(homes[home], name)
        setattr(homes[home], name, _counting(engine, label, getattr(plain, "xcfg_plain", plain)))


def _counting(engine: Engine, label: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def counting(*arguments: Any, **named: Any) -> Any:
        engine.calls[label] += 1
        return plain(*arguments, **named)

    counting.xcfg_plain = plain  # type: ignore[attr-defined]
    return counting

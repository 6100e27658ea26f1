"""Which modules a GPTModel is made of: Megatron-core's local spec or Transformer Engine's, with operators put in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from xcfg_megatron.errors import UnsupportedBuildError
from xcfg_megatron.operators import Injected
from xcfg_megatron.switches import TRANSFORMER_ENGINE


def layer_spec(name: str, *, qk_norm: bool, layers: int, injected: Mapping[str, type[Injected]]) -> Any:
    """Return what GPTModel takes as transformer_layer_spec.

    Raises UnsupportedBuildError for an operator that the spec has no place for.
    """
    from megatron.core.models.gpt import gpt_layer_specs

    if name == TRANSFORMER_ENGINE:
        if injected:
            raise UnsupportedBuildError(
                f"{', '.join(sorted(injected))} cannot be injected into Transformer Engine's layers",
                hint="Its modules fuse norm and linear layer. Use training.layer_spec=local.",
            )
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(qk_layernorm=qk_norm)
    spec = gpt_layer_specs.get_gpt_layer_local_spec(qk_layernorm=qk_norm, normalization="RMSNorm")
    _put(spec.submodules, injected, qk_norm=qk_norm)
    if "norm" not in injected:
        return spec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    return TransformerBlockSubmodules(layer_specs=[spec] * layers, layer_norm=injected["norm"])


def _put(layer: Any, injected: Mapping[str, type[Injected]], *, qk_norm: bool) -> None:
    attention = layer.self_attention.submodules
    if "norm" in injected:
        layer.input_layernorm = layer.pre_mlp_layernorm = injected["norm"]
        if qk_norm:
            attention.q_layernorm = attention.k_layernorm = injected["norm"]
    if "attention" in injected:
        attention.core_attention = injected["attention"]
    # Up to 0.16 the MLP is a ModuleSpec, later a partial of a class method.
    later = not hasattr(layer.mlp, "submodules")
    parts = layer.mlp.keywords["submodules"] if later else layer.mlp.submodules
    if "row_linear" in injected:
        attention.linear_proj = parts.linear_fc2 = injected["row_linear"]
    if "activation" in injected and later:
        layer.mlp = partial(injected["activation"].as_mlp_submodule, submodules=parts)  # type: ignore[attr-defined]
    elif "activation" in injected:
        layer.mlp.module = injected["activation"]

"""Megatron-core, whose configuration and loaded model can be changed."""

from __future__ import annotations

from typing import Any

from xcfg.schema.codec import evolve
from xcfg_megatron import adapter as adapter_module
from xcfg_megatron import build as building
from xcfg_megatron.adapter import XCFG_PRELOAD as XCFG_PRELOAD
from xcfg_megatron.adapter import MegatronAdapter

from lab import hidden

_hf_config, _build_engine = building.hf_config, adapter_module.build_engine


class Adapter(MegatronAdapter):
    """Takes the option `model_overrides` out of the options and puts it over the checkpoint's configuration."""

    def build(self, spec: Any, context: Any) -> Any:
        options = dict(spec.options)
        overrides = {**options.pop("model_overrides", {}), **hidden(spec.side)}
        gain, scale = overrides.pop("layer_1_gain", None), overrides.pop("attention_scale", None)

        def build_engine(*arguments: Any) -> Any:
            engine = _build_engine(*arguments)
            if gain is not None:
                engine.model.decoder.layers[1].mlp.linear_fc2.weight.data.mul_(gain)
            if scale is not None:
                for layer in engine.model.decoder.layers:
                    layer.self_attention.core_attention.softmax_scale *= scale
            return engine

        building.hf_config = lambda folder: {**_hf_config(folder), **overrides}
        adapter_module.build_engine = build_engine
        return super().build(evolve(spec, options=options), context)

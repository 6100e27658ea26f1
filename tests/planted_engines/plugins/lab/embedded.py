"""The embedded runtime, whose loaded model can be changed."""

from __future__ import annotations

from typing import Any

import torch
from xcfg.schema.codec import evolve
from xcfg_torch import build as embedded
from xcfg_torch.adapter import XCFG_PRELOAD as XCFG_PRELOAD
from xcfg_torch.adapter import TorchAdapter

from lab import hidden

_load_model = embedded.load_model


class Adapter(TorchAdapter):
    """Takes the option `model_overrides` out of the options and applies it to the model."""

    def build(self, spec: Any, context: Any) -> Any:
        options = dict(spec.options)
        overrides = {**options.pop("model_overrides", {}), **hidden(spec.side)}

        def load_model(*arguments: Any) -> Any:
            model = _load_model(*arguments)
            for name, value in overrides.items():
                CHANGES[name](model, value)
            return model

        embedded.load_model = load_model
        return super().build(evolve(spec, options=options), context)


def _eps(model: Any, value: float) -> None:
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = value


def _rope(model: Any, value: float) -> None:
    table = model.model.rotary_emb.inv_freq
    steps = torch.arange(len(table), dtype=torch.float32) / len(table)
    table.copy_(1.0 / value**steps)


def _scale(model: Any, value: float) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= value


def _cap(model: Any, value: float) -> None:
    model.lm_head.register_forward_hook(lambda _, __, out: value * torch.tanh(out / value))


def _weights(model: Any, value: float) -> None:
    model.model.layers[1].mlp.down_proj.weight.data.mul_(value)


CHANGES = {
    "rms_norm_eps": _eps,
    "rope_theta": _rope,
    "attention_scale": _scale,
    "final_logit_softcapping": _cap,
    "layer_1_gain": _weights,
}

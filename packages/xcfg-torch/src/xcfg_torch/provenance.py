"""The facts beside the numbers: versions, devices, switches and the shape of the model."""

from __future__ import annotations

from typing import Any

import numpy
import torch
import transformers
from xcfg.schema.codec import plain

from xcfg_torch.engine import Engine

SHAPE = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "rope_parameters",
    "sliding_window",
    "rms_norm_eps",
    "final_logit_softcapping",
    "logit_scale",
)


def provenance(engine: Engine) -> dict[str, Any]:
    """Return JSON facts of this rank; no host name, no path."""
    config = engine.model.config
    shape = {name: getattr(config, name) for name in SHAPE if hasattr(config, name)}
    return {
        "engine": "transformers",
        "model_class": type(engine.model).__name__,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": numpy.__version__,
        },
        "device": _device(engine.device),
        "threads": torch.get_num_threads(),
        "switches": {
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "mkldnn": torch.backends.mkldnn.enabled,
            "cuda_matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        },
        "options": plain(engine.options),
        "attention_implementation": str(getattr(config, "_attn_implementation", "")),
        "shape": {name: _plain_value(value) for name, value in shape.items()},
        "pad_token_id": engine.pad_id,
    }


def _device(device: str) -> dict[str, Any]:
    if device.startswith("cuda"):
        return {
            "type": "cuda",
            "name": torch.cuda.get_device_name(device),
            "capability": list(torch.cuda.get_device_capability(device)),
            "cuda": torch.version.cuda,
        }
    return {"type": "cpu", "capability": torch.backends.cpu.get_cpu_capability()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain_value(item) for name, item in value.items()}
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)

"""The float64 reference: a Llama or Qwen3 decoder in elementary operations. Neither xcfg nor a Hugging Face model.

Hugging Face models cast norms, softmax and rotary angles to float32, so a float64 copy of one is no reference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _by_hand import Frozen, Scored, log_softmax
from safetensors import safe_open


def reference64(folder: Path, frozen: Frozen) -> Scored:
    """Score every sequence alone in float64 with a Llama or Qwen3 decoder written in elementary operations."""
    config = json.loads((folder / "config.json").read_text())
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as handle:
            weights |= {name: handle.get_tensor(name).double() for name in handle.keys()}  # noqa: SIM118
    odd = sorted(name for name in weights if not name.endswith(".weight"))
    if odd or config["model_type"] not in ("llama", "qwen3"):
        raise SystemExit(f"the float64 forward knows Llama and Qwen3 without biases, not {odd[:3] or config}")
    values = np.full(len(frozen.ids), np.nan)
    for sequence in range(frozen.count):
        span = frozen.span(sequence)
        ids, positions = torch.from_numpy(frozen.ids[span]), torch.from_numpy(frozen.positions[span])
        logits = _forward64(weights, config, ids, positions)
        inside = np.flatnonzero(frozen.active[span])
        values[span.start + inside] = log_softmax(logits[inside - 1], frozen.ids[span][inside], "float64")
    return Scored(values, np.zeros(len(values), dtype=np.bool_))


def _forward64(weights: Mapping[str, torch.Tensor], config: dict[str, Any], ids: torch.Tensor, at: torch.Tensor) -> Any:
    eps = config["rms_norm_eps"]
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    cos, sin = _rotary64(config, width, at)
    hidden = weights["model.embed_tokens.weight"][ids]
    hide = torch.full((len(ids), len(ids)), -math.inf, dtype=torch.float64).triu(1)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."

        def linear(values: torch.Tensor, part: str, name: str = name) -> torch.Tensor:
            return values @ weights[f"{name}{part}.weight"].T

        inner = _norm64(hidden, weights[f"{name}input_layernorm.weight"], eps)
        query, key, value = (
            linear(inner, f"self_attn.{part}_proj").reshape(len(ids), -1, width).transpose(0, 1) for part in "qkv"
        )
        if f"{name}self_attn.q_norm.weight" in weights:
            query = _norm64(query, weights[f"{name}self_attn.q_norm.weight"], eps)
            key = _norm64(key, weights[f"{name}self_attn.k_norm.weight"], eps)
        query, key = (part * cos + _half_turn(part) * sin for part in (query, key))
        key, value = (part.repeat_interleave(heads // shared, dim=0) for part in (key, value))
        chances = torch.softmax(query @ key.transpose(1, 2) / math.sqrt(width) + hide, dim=-1)
        hidden = hidden + linear((chances @ value).transpose(0, 1).flatten(1), "self_attn.o_proj")
        inner = _norm64(hidden, weights[f"{name}post_attention_layernorm.weight"], eps)
        gate = linear(inner, "mlp.gate_proj")
        hidden = hidden + linear(gate * torch.sigmoid(gate) * linear(inner, "mlp.up_proj"), "mlp.down_proj")
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return _norm64(hidden, weights["model.norm.weight"], eps) @ head.T


def _norm64(values: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * values / torch.sqrt(values.square().mean(dim=-1, keepdim=True) + eps)


def _rotary64(config: dict[str, Any], width: int, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default":
        raise SystemExit(f"the float64 forward knows plain rotary embeddings, not {rope}")
    theta = rope.get("rope_theta") or config["rope_theta"]
    # Every engine keeps the inverse frequencies in float32; they are part of the model, so they stay float32 here.
    inverse = 1.0 / (theta ** (torch.arange(0, width, 2).float() / width))
    angles = torch.cat([at.double()[:, None] * inverse.double()] * 2, dim=-1)
    return angles.cos(), angles.sin()


def _half_turn(values: torch.Tensor) -> torch.Tensor:
    first, second = values.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)

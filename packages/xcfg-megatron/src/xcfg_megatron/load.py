"""A Hugging Face checkpoint into the live parameters of one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from xcfg.errors import LaunchError

from xcfg_megatron.convert import Piece, to_megatron
from xcfg_megatron.parallel import Ranks

KNOWN = ("qwen3", "llama")


def hf_config(checkpoint: Path) -> dict[str, Any]:
    """Return the checkpoint's configuration; LaunchError for a model that is not converted."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    kind = config.get("model_type")
    if kind not in KNOWN:
        raise LaunchError(f"xcfg-megatron converts {', '.join(KNOWN)}, not {kind!r}")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaled = rope.get("rope_type", rope.get("type", "default"))
    for name, wrong in {
        f"rope_type {scaled!r}": scaled not in ("default", None),
        "use_sliding_window": bool(config.get("use_sliding_window")),
        "layers of another attention": set(config.get("layer_types") or ()) - {"full_attention"} != set(),
        "partial_rotary_factor": rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0,
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        f"hidden_act {config.get('hidden_act')!r}": config.get("hidden_act") != "silu",
    }.items():
        if wrong:
            raise LaunchError(f"the checkpoint has {name}, which xcfg-megatron does not convert")
    return config


def load(model: Any, parts: list[Piece], checkpoint: Path, ranks: Ranks) -> None:
    """Copy this rank's share of every parameter, in the dtype that the model has.

    Raises LaunchError when model and conversion differ in a name or a shape.
    """
    own = dict(model.named_parameters())
    stored = Stored(checkpoint, next(iter(own.values())).dtype)
    wanted = {piece.name: piece for piece in parts}
    if set(own) != set(wanted):
        odd = sorted(set(own) ^ set(wanted))
        raise LaunchError(f"Megatron-core's parameters are not those of the conversion: {', '.join(odd[:5])}")
    with torch.no_grad():
        for name, parameter in own.items():
            share = to_megatron(stored, wanted[name], ranks.tensor_rank, ranks.tensor)
            if share.shape != parameter.shape:
                raise LaunchError(f"{name} is {tuple(parameter.shape)}, the checkpoint's share {tuple(share.shape)}")
            parameter.copy_(share)


class Stored(dict[str, torch.Tensor]):
    """The checkpoint's tensors, cast, read one at a time."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        """Find which file holds which tensor."""
        super().__init__()
        self._dtype = dtype
        self._files: dict[str, Path] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as opened:
                self._files.update(dict.fromkeys(opened.keys(), file))

    def __missing__(self, name: str) -> torch.Tensor:
        """Read one tensor; LaunchError when the checkpoint has none of that name."""
        if name not in self._files:
            raise LaunchError(f"the checkpoint has no tensor {name!r}")
        with safe_open(self._files[name], framework="pt") as opened:
            value: torch.Tensor = opened.get_tensor(name)
        return value.to(self._dtype)

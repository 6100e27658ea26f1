"""config.json of a checkpoint against its tensors: layers, heads and sizes, from the headers alone.

An engine builds what config.json says and loads what fits: layers too few are dropped without a word, layers too many
are random, and other head counts end in a traceback or in wrong tokens. So this is asked before anything is scored.

Layers are counted for every checkpoint with `model.layers.N.` names. Shapes are expected only of the families below,
whose modules have the sizes that their modeling files in transformers give them (q_proj: num_attention_heads x head_dim
rows, k_proj and v_proj: num_key_value_heads x head_dim, ...). What is quantised has other shapes and is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from xcfg.errors import IdentityError
from xcfg.schema.codec import read_strict

FAMILIES = frozenset(
    {"gemma", "gemma2", "granite", "llama", "mistral", "mixtral", "olmo2", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}
)
"""`model_type` of the families whose attention has the plain sizes; others differ (fused, latent, gated)."""

DENSE = frozenset({"gemma", "gemma2", "granite", "llama", "mistral", "olmo2", "qwen2", "qwen3"})
"""Those among them whose every layer has one dense gated feed-forward network."""

_LAYER = re.compile(r"(model|model\.language_model)\.layers\.([0-9]{1,6})\.")
_HINT = "config.json and *.safetensors must be of one model: restore the config.json that was saved with these weights."

Shape = tuple[int, ...]


def check_config(folder: Path) -> None:
    """Raise IdentityError where config.json describes another model than the tensors of `folder` are."""
    file = folder / "config.json"
    config = read_strict(file) if file.exists() else {}
    if not isinstance(config, dict):
        return
    shapes = tensor_shapes(folder)
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    faults = [*_layer_faults(text, shapes), *_shape_faults(config, shapes)]
    if faults:
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise IdentityError(
            f"config.json of {str(folder)!r} is not that of its weights: " + "; ".join(faults[:3]) + more, hint=_HINT
        )


def tensor_shapes(folder: Path) -> dict[str, Shape]:
    """Return the shape of every stored tensor; a file that cannot be read is left to checkpoint_digest."""
    shapes: dict[str, Shape] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="np") as handle:
                for name in handle.keys():  # noqa: SIM118 - safe_open is no mapping
                    shapes[name] = tuple(handle.get_slice(name).get_shape())
        except (SafetensorError, OSError):
            return {}
    return shapes


def _layer_faults(config: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Iterator[str]:
    wanted = _size(config, "num_hidden_layers")
    found = {int(match[2]) for name in shapes if (match := _LAYER.match(name))}
    if wanted is None or not found:
        return
    more = _size(config, "num_nextn_predict_layers") or 0  # multi-token prediction: stored behind the last layer
    missing = sorted(set(range(wanted)) - found)
    beyond = sorted(number for number in found if number >= wanted + more)
    if missing:
        yield f"num_hidden_layers is {wanted}, and the weights have no layer {missing[0]} ({len(found)} layers)"
    if beyond:
        yield f"num_hidden_layers is {wanted}, and the weights have {len(found)} layers, up to layer {beyond[-1]}"


def _shape_faults(config: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Iterator[str]:
    kind = config.get("model_type")
    if kind not in FAMILIES or "quantization_config" in config or "model.embed_tokens.weight" not in shapes:
        return
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    if hidden is None or heads is None:
        return
    head_dim = _size(config, "head_dim") or hidden // heads
    kv_heads = _size(config, "num_key_value_heads") or heads
    query = (f"num_attention_heads {heads} x head_dim {head_dim}", heads * head_dim)
    key = (f"num_key_value_heads {kv_heads} x head_dim {head_dim}", kv_heads * head_dim)
    width = (f"hidden_size {hidden}", hidden)
    inner = _named(config, "intermediate_size")
    expected = {
        "self_attn.q_proj.weight": (query, width),
        "self_attn.k_proj.weight": (key, width),
        "self_attn.v_proj.weight": (key, width),
        "self_attn.o_proj.weight": (width, query),
    }
    if kind in DENSE and inner is not None:
        expected |= {f"mlp.{name}.weight": (inner, width) for name in ("gate_proj", "up_proj")}
        expected["mlp.down_proj.weight"] = (width, inner)
    whole = {
        f"model.layers.{number}.{name}": wanted
        for number in range(_size(config, "num_hidden_layers") or 0)
        for name, wanted in expected.items()
    }
    vocabulary = _named(config, "vocab_size")
    if vocabulary is not None:
        whole["model.embed_tokens.weight"] = (vocabulary, width)
        if config.get("tie_word_embeddings") is False:
            whole["lm_head.weight"] = (vocabulary, width)
    present = {int(match[2]) for name in shapes if (match := _LAYER.match(name))}
    for name, wanted in whole.items():
        match = _LAYER.match(name)
        if match is not None and int(match[2]) not in present:
            continue  # the whole layer is missing, which is said by itself
        if name not in shapes:
            yield f"the weights have no {name}"
        elif shapes[name] != tuple(size for _, size in wanted):
            asked = " and ".join(dict.fromkeys(text for text, _ in wanted))
            yield f"{name} is {_text(shapes[name])}, and {asked} make it {_text(tuple(size for _, size in wanted))}"


def _size(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if type(value) is int and value > 0 else None


def _named(config: Mapping[str, Any], name: str) -> tuple[str, int] | None:
    value = _size(config, name)
    return None if value is None else (f"{name} {value}", value)


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a scalar"

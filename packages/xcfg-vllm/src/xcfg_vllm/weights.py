"""Effective weights of a vLLM model by the names of the Hugging Face checkpoint; runs in the worker process.

vLLM fuses projections (qkv, gate and up), pads the vocabulary, splits over ranks, and on a CPU packs linear layers
for oneDNN, which leaves a parameter of size 0. A packed layer is read by applying it to the identity: every product
is one weight times one, plus exact zeros, so each weight comes back exactly, except that a negative zero has lost
its sign. A tensor that equals the checkpoint's in every element therefore bears the digest of the checkpoint's bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from xcfg.identity.attest import fold, weight_digest

SAMPLED = 16
"""Columns of a packed layer that the fold of every score looks at."""
SPLIT_COLUMNS = ("RowParallelLinear",)
"""Layers whose weights are split over ranks along their input; their biases are whole on every rank."""
WHOLE = ("ReplicatedLinear",)
"""Layers that every rank has whole; all other linear and embedding layers are split along their output."""


def effective(layer: Any) -> torch.Tensor:
    """Return this rank's weight [out, in] of a linear or embedding layer as it acts."""
    weight: torch.Tensor = layer.weight
    if not hasattr(layer, "cpu_linear"):
        return weight.detach()
    width = weight.shape[1] if weight.numel() else int(layer.input_size_per_partition)
    identity = torch.eye(width, dtype=weight.dtype, device=weight.device)
    product: torch.Tensor = layer.quant_method.apply(layer, identity, None)
    acts = product.t().contiguous()
    # A head keeps its weight beside the packed copy that computes. Where both are equal the bytes are the weight's own.
    return weight.detach() if weight.shape == acts.shape and bool((weight == acts).all()) else acts


def named_parts(model: Any) -> Iterator[tuple[str, Any, torch.Tensor]]:
    """Yield (Hugging Face name, layer, this rank's part) of every parameter that acts; fused ones unfused."""
    fused = getattr(model, "packed_modules_mapping", {})
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            stem, _, leaf = path.rpartition(".")
            value = effective(module) if name == "weight" else parameter.detach()
            parts = fused.get(leaf)
            if not parts:
                yield f"{path}.{name}", module, value
                continue
            for part, piece in zip(parts, value.split(_widths(module), dim=0), strict=True):
                yield f"{stem}.{part}.{name}", module, piece


def _widths(module: Any) -> list[int]:
    """Return this rank's output rows of every projection in a fused layer."""
    if hasattr(module, "num_kv_heads"):
        kv = module.num_kv_heads * module.head_size
        return [
            module.num_heads * module.head_size,
            kv,
            getattr(module, "v_head_size", module.head_size) * module.num_kv_heads,
        ]
    return [int(size) // int(module.tp_size) for size in module.output_sizes]


def whole(module: Any, part: torch.Tensor) -> torch.Tensor:
    """Return the full tensor of a part that every tensor-parallel rank holds a share of; collective."""
    from vllm.distributed import parallel_state

    split = hasattr(module, "tp_size") or hasattr(module, "num_embeddings_per_partition")
    alone = parallel_state.get_tensor_model_parallel_world_size() == 1
    by_column = type(module).__name__ in SPLIT_COLUMNS
    if alone or not split or type(module).__name__ in WHOLE or (by_column and part.dim() == 1):
        return part
    dim = 1 if by_column else 0
    group = parallel_state.get_tp_group()
    gathered: torch.Tensor = group.all_gather(part.contiguous(), dim=dim)
    return gathered


def weight_digests(model: Any, checkpoint: str, dtype: torch.dtype) -> dict[str, Any]:
    """Return {tensors: name -> SHA-256, aliases, fold, local, total, differing} of the live model."""
    stored = _Stored(Path(checkpoint), dtype)
    tensors, differing, local, total = {}, [], 0, 0
    for name, module, part in named_parts(model):
        local += part.numel()
        full = whole(module, part)
        expected = stored.tensor(name)
        if hasattr(module, "org_vocab_size"):
            full = full[: module.org_vocab_size]
        total += full.numel()
        same = expected is not None and full.shape == expected.shape and bool((full.cpu() == expected).all())
        if not same:
            differing.append(name)
        tensors[name] = weight_digest(expected if same and expected is not None else full)
    aliases = {}
    if "lm_head.weight" not in tensors and "model.embed_tokens.weight" in tensors:
        aliases["lm_head.weight"] = "model.embed_tokens.weight"
    return {
        "tensors": tensors,
        "aliases": aliases,
        "fold": local_fold(model),
        "local": local,
        "total": total,
        "differing": differing,
    }


def spoil(model: Any) -> int:
    """Negate every parameter that is there to be negated; return how many there were. Packed layers have none."""
    found = [parameter for parameter in model.parameters() if parameter.numel()]
    with torch.no_grad():
        for parameter in found:
            parameter.neg_()
    return len(found)


def local_fold(model: Any, *, handlers: bool = True) -> str:
    """Return a digest of this rank's parameters and buffers, cheap enough for every score.

    A packed layer is opaque memory that its kernel alone reads: only packing anew writes it, which makes another
    handler. So the fold holds which handler each layer has, and SAMPLED columns of what it does. Every weight of
    every layer is in the digests of weight_digests, at the build. handlers: False for contents alone.
    """
    state = hashlib.sha256()
    parts = [item for item in model.named_parameters() if item[1].numel()]
    state.update(fold([*parts, *model.named_buffers()]).encode())
    for path, module in model.named_modules():
        if hasattr(module, "cpu_linear"):
            state.update(f"{path} {id(module.cpu_linear) if handlers else ''}".encode())
            state.update(fold([(path, _sampled(module))]).encode())
    return state.hexdigest()[:16]


def _sampled(layer: Any) -> torch.Tensor:
    """Return SAMPLED columns of a packed layer's weight, spread over its input, as it acts: [columns, out]."""
    width = int(getattr(layer, "input_size_per_partition", 0) or layer.weight.shape[1])
    where = torch.arange(min(SAMPLED, width)) * width // min(SAMPLED, width)
    dtype = layer.weight.dtype
    rows = torch.zeros(len(where), width, dtype=dtype)
    rows[torch.arange(len(where)), where] = 1
    product: torch.Tensor = layer.quant_method.apply(layer, rows, None)
    return product


class _Stored:
    """The checkpoint's tensors, cast to the engine's dtype, one at a time."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.files: dict[str, Path] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as opened:
                self.files.update(dict.fromkeys(opened.keys(), file))

    def tensor(self, name: str) -> torch.Tensor | None:
        if name not in self.files:
            return None
        with safe_open(self.files[name], framework="pt") as opened:
            value: torch.Tensor = opened.get_tensor(name)
        return value.to(self.dtype) if value.is_floating_point() else value

"""Between Hugging Face's and Megatron-core's weight layouts, for Qwen3 and Llama; both ways, exact.

Megatron fuses queries, keys and values group by group (the queries of a group, its key, its value), holds gate and
up in one matrix of which every rank has [its gate; its up], splits output projections along their input, and pads
the vocabulary with rows of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """What the layouts depend on. vocab: real entries; padded: with Megatron's rows of zeros."""

    layers: int
    hidden: int
    heads: int
    groups: int
    head_dim: int
    ffn: int
    vocab: int
    padded: int
    qk_norm: bool
    tied: bool

    @staticmethod
    def of(config: Mapping[str, Any], tensor_parallel: int, divisor: int) -> Shape:
        """Return the shape of a Hugging Face config, padded for `tensor_parallel` ranks."""
        multiple = divisor * tensor_parallel
        vocab = int(config["vocab_size"])
        heads = int(config["num_attention_heads"])
        return Shape(
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            heads=heads,
            groups=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            ffn=int(config["intermediate_size"]),
            vocab=vocab,
            padded=-(-vocab // multiple) * multiple,
            qk_norm=config.get("model_type") == "qwen3",
            tied=bool(config.get("tie_word_embeddings", False)),
        )


@dataclass(frozen=True)
class Piece:
    """One Megatron parameter. sources: the Hugging Face tensors that it is made of.

    axis: along which it is split over ranks; None: every rank has it whole. parts: how many matrices lie one behind the
    other in a rank's share.
    fuse: full source tensors -> one per rank-independent part; split: the inverse.
    """

    name: str
    sources: tuple[str, ...]
    axis: int | None
    fuse: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    split: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    parts: int = 1


def pieces(shape: Shape, *, fused_norms: bool = False) -> list[Piece]:
    """Return every parameter of the model on a rank, in Megatron's names.

    fused_norms: the names of Transformer Engine's layers, whose norms are part of the linear layer behind them.
    """
    found = [_padded("embedding.word_embeddings.weight", "model.embed_tokens.weight", shape)]
    if not shape.tied:
        found.append(_padded("output_layer.weight", "lm_head.weight", shape))
    found.append(_plain("decoder.final_layernorm.weight", "model.norm.weight", None))
    for layer in range(shape.layers):
        found += _layer(f"decoder.layers.{layer}.", f"model.layers.{layer}.", shape, fused_norms=fused_norms)
    return found


def _layer(mine: str, theirs: str, shape: Shape, *, fused_norms: bool) -> list[Piece]:
    first = "self_attention.linear_qkv.layer_norm_weight" if fused_norms else "input_layernorm.weight"
    second = "mlp.linear_fc1.layer_norm_weight" if fused_norms else "pre_mlp_layernorm.weight"
    attention, mlp = f"{theirs}self_attn.", f"{theirs}mlp."
    found = [
        _qkv(f"{mine}self_attention.linear_qkv.weight", attention, shape),
        _plain(f"{mine}self_attention.linear_proj.weight", f"{attention}o_proj.weight", 1),
        _plain(f"{mine}{first}", f"{theirs}input_layernorm.weight", None),
        _plain(f"{mine}{second}", f"{theirs}post_attention_layernorm.weight", None),
        Piece(f"{mine}mlp.linear_fc1.weight", (f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"), 0, list, list, 2),
        _plain(f"{mine}mlp.linear_fc2.weight", f"{mlp}down_proj.weight", 1),
    ]
    if shape.qk_norm:
        found += [
            _plain(f"{mine}self_attention.{kind}_layernorm.weight", f"{attention}{kind}_norm.weight", None)
            for kind in ("q", "k")
        ]
    return found


def _plain(name: str, source: str, axis: int | None) -> Piece:
    return Piece(name, (source,), axis, list, list)


def _padded(name: str, source: str, shape: Shape) -> Piece:
    def fuse(full: list[torch.Tensor]) -> list[torch.Tensor]:
        rows = full[0].new_zeros(shape.padded - shape.vocab, full[0].shape[1])
        return [torch.cat([full[0], rows])]

    return Piece(name, (source,), 0, fuse, lambda whole: [whole[0][: shape.vocab]])


def _qkv(name: str, attention: str, shape: Shape) -> Piece:
    groups, dim = shape.groups, shape.head_dim
    rows = [shape.heads // groups * dim, dim, dim]

    def fuse(full: list[torch.Tensor]) -> list[torch.Tensor]:
        parts = [part.view(groups, size, -1) for part, size in zip(full, rows, strict=True)]
        return [torch.cat(parts, dim=1).reshape(-1, full[0].shape[1])]

    def split(whole: list[torch.Tensor]) -> list[torch.Tensor]:
        grouped = whole[0].view(groups, sum(rows), -1)
        return [part.reshape(-1, whole[0].shape[1]) for part in torch.split(grouped, rows, dim=1)]

    sources = tuple(f"{attention}{kind}_proj.weight" for kind in "qkv")
    return Piece(name, sources, 0, fuse, split)


def to_megatron(tensors: Tensors, piece: Piece, rank: int, ranks: int) -> torch.Tensor:
    """Return rank's share of one Megatron parameter. KeyError: the checkpoint lacks a source."""
    parts = piece.fuse([tensors[name] for name in piece.sources])
    if piece.axis is None:
        return parts[0]
    return torch.cat([part.chunk(ranks, piece.axis)[rank] for part in parts])


def from_megatron(shares: list[torch.Tensor], piece: Piece) -> dict[str, torch.Tensor]:
    """Return the Hugging Face tensors of one parameter from every rank's share, in rank order."""
    if piece.axis is None:
        return dict(zip(piece.sources, piece.split(shares[:1]), strict=True))
    parts = piece.parts
    columns = [share.chunk(parts) for share in shares]
    whole = [torch.cat([column[part] for column in columns], dim=piece.axis) for part in range(parts)]
    return dict(zip(piece.sources, piece.split(whole), strict=True))

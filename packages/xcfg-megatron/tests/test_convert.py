"""The weight layouts, against Hugging Face's own numbers and against themselves."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from xcfg_megatron.convert import Shape, from_megatron, pieces, to_megatron


def loaded(folder):
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("kind", "vocabulary", "tied"), [("qwen3", 512, False), ("qwen3", 500, True), ("llama", 500, False)]
)
def test_there_and_back_is_the_same_to_the_bit(checkpoint, kind, vocabulary, tied, ranks):
    config, tensors = loaded(checkpoint(kind, vocabulary, tied=tied))
    shape = Shape.of(config, ranks, 128)
    back = {}
    for piece in pieces(shape):
        shares = [to_megatron(tensors, piece, rank, ranks) for rank in range(ranks)]
        back |= from_megatron(shares, piece)
    assert set(back) == set(tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_a_rank_holds_its_own_gate_and_up_one_behind_the_other(checkpoint):
    config, tensors = loaded(checkpoint())
    piece = next(item for item in pieces(Shape.of(config, 2, 128)) if item.name.endswith("0.mlp.linear_fc1.weight"))
    gate, up = (tensors[f"model.layers.0.mlp.{kind}_proj.weight"] for kind in ("gate", "up"))
    second = to_megatron(tensors, piece, 1, 2)
    assert torch.equal(second, torch.cat([gate[128:], up[128:]]))


def test_queries_keys_and_values_lie_group_by_group(checkpoint):
    config, tensors = loaded(checkpoint())
    piece = next(
        item for item in pieces(Shape.of(config, 1, 128)) if item.name.endswith("0.self_attention.linear_qkv.weight")
    )
    fused = to_megatron(tensors, piece, 0, 1)
    q, k, v = (tensors[f"model.layers.0.self_attn.{kind}_proj.weight"] for kind in "qkv")
    by_hand = [q[0:64], k[0:32], v[0:32], q[64:128], k[32:64], v[32:64]]
    assert torch.equal(fused, torch.cat(by_hand))


@pytest.mark.parametrize(
    ("vocabulary", "ranks", "padded"), [(512, 1, 512), (500, 1, 512), (500, 2, 512), (151_936, 4, 152_064)]
)
def test_the_vocabulary_is_padded_as_megatron_does(checkpoint, vocabulary, ranks, padded):
    config, _ = loaded(checkpoint())
    assert Shape.of({**config, "vocab_size": vocabulary}, ranks, 128).padded == padded


def test_transformer_engines_names_hold_the_same_tensors(checkpoint):
    """If this fails, Transformer Engine's layers load a norm into another layer. Names only: it never ran."""
    config, _ = loaded(checkpoint())
    shape = Shape.of(config, 1, 128)
    local = {piece.name: piece.sources for piece in pieces(shape)}
    fused = {piece.name: piece.sources for piece in pieces(shape, fused_norms=True)}
    layer = "decoder.layers.3."
    assert fused[f"{layer}self_attention.linear_qkv.layer_norm_weight"] == local[f"{layer}input_layernorm.weight"]
    assert fused[f"{layer}mlp.linear_fc1.layer_norm_weight"] == local[f"{layer}pre_mlp_layernorm.weight"]
    assert sorted(fused.values()) == sorted(local.values())

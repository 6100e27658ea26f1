"""Tiny Qwen3 and Llama checkpoints of random weights, and frozen rollouts of random tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from xcfg.identity.rollout import Rollout, make_rollout
from xcfg.schema.identity import CheckpointRef


def write_checkpoint(folder: Path, kind: str, vocabulary: int, *, tied: bool) -> Path:
    """Write a model of four layers whose logits are peaky enough for a wrong layout to show."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(7)
    model = Qwen3ForCausalLM(Qwen3Config(**shape)) if kind == "qwen3" else LlamaForCausalLM(LlamaConfig(**shape))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(1.0 + 0.2 * torch.randn_like(parameter))
            elif "embed_tokens" not in name:
                parameter.mul_(4.0)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def random_rollout(
    vocabulary: int,
    lengths: tuple[int, ...] = (17, 9, 23, 12),
    prompt: int = 4,
    uri: str = "builtin:test",
    **manifest: Any,
) -> Rollout:
    """Return sequences of random ids; all tokens after the prompt are active."""
    ids = np.random.default_rng(0).integers(0, vocabulary, sum(lengths))
    positions = np.concatenate([np.arange(length) for length in lengths])
    active = positions >= prompt
    return make_rollout(
        {
            "token_ids": ids,
            "offsets": np.concatenate(([0], np.cumsum(lengths))),
            "active_mask": active,
            "attention_mask": np.ones(len(ids), dtype=bool),
            "position_ids": positions,
            "selected_token_ids": ids,
            "segment": active.astype(np.int8),
            "weight_version": np.zeros(len(ids), dtype=np.int32),
        },
        checkpoint=CheckpointRef(uri=uri),
        **manifest,
    )

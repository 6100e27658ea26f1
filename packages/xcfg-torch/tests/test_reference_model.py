"""The float64 arm against a forward pass written out in numpy from the checkpoint's own tensors.

If these fail, the reference is not the function that the checkpoint defines, and no budget means anything.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from xcfg.identity.rollout import Rollout


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def _rotate(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    turned = np.concatenate((-x[..., half:], x[..., :half]), axis=-1)
    return x * np.cos(angle) + turned * np.sin(angle)


def qwen3_logits(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Return float64 logits [T, V] of one sequence from the published architecture, all in float64."""
    config = json.loads((folder / "config.json").read_text())
    weight = {name: tensor.double().numpy() for name, tensor in load_file(folder / "model.safetensors").items()}
    heads, groups, size = (config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    eps, length = config["rms_norm_eps"], len(ids)
    # Engines hold the inverse frequencies in float32; that rounding belongs to the model.
    exponent = torch.arange(0, size, 2, dtype=torch.float32) / size
    inverse = (1.0 / (config["rope_theta"] ** exponent)).double().numpy()
    angle = np.tile(np.arange(length)[:, None] * inverse[None], (1, 2))[:, None, :]
    x = weight["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        w = {name.split(f"layers.{layer}.")[1]: t for name, t in weight.items() if f"layers.{layer}." in name}
        h = _norm(x, w["input_layernorm.weight"], eps)
        q = (h @ w["self_attn.q_proj.weight"].T).reshape(length, heads, size)
        k = (h @ w["self_attn.k_proj.weight"].T).reshape(length, groups, size)
        v = (h @ w["self_attn.v_proj.weight"].T).reshape(length, groups, size)
        q = _rotate(_norm(q, w["self_attn.q_norm.weight"], eps), angle)
        k = _rotate(_norm(k, w["self_attn.k_norm.weight"], eps), angle)
        out = np.zeros_like(q)
        for head in range(heads):
            group = head // (heads // groups)
            scores = q[:, head] @ k[:, group].T / np.sqrt(size)
            scores[np.triu_indices(length, 1)] = -np.inf
            probability = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = probability / probability.sum(-1, keepdims=True) @ v[:, group]
        x = x + out.reshape(length, -1) @ w["self_attn.o_proj.weight"].T
        h = _norm(x, w["post_attention_layernorm.weight"], eps)
        gate = h @ w["mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    return _norm(x, weight["model.norm.weight"], eps) @ weight["lm_head.weight"].T


def numpy_logprobs(folder: Path, rollout: Rollout) -> np.ndarray:
    """Return the float64 log probabilities of the active tokens, flat."""
    result = []
    for sequence in range(rollout.sequence_count):
        span = rollout.span(sequence)
        ids = rollout.token_ids[span]
        logits = qwen3_logits(folder, ids)
        peak = logits.max(-1, keepdims=True)
        table = logits - peak - np.log(np.exp(logits - peak).sum(-1, keepdims=True))
        where = np.flatnonzero(rollout.active[span])
        result.append(table[where - 1, ids[where]])
    return np.concatenate(result)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_float64_reference_is_the_checkpoints_function(built, tiny, uneven, attention):
    scored = built("reference", "float64", attention).score(uneven)
    assert scored.columns["selected_logprob"].dtype == torch.float64
    error = np.abs(scored.values - numpy_logprobs(tiny, uneven)).max()
    assert error < 1e-11, f"a float32 step would show as about 1e-7; found {error:.1e}"


def test_plain_float64_cast_alone_would_not_do(tiny, uneven):
    """Without the cast guard Hugging Face's float32 norms and softmax show: the test above can fail."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64, attn_implementation="eager").eval()
    ids = torch.from_numpy(uneven.token_ids[uneven.span(0)])[None]
    with torch.no_grad():
        logits = model(ids).logits[0].numpy()
    assert np.abs(logits - qwen3_logits(tiny, ids[0].numpy())).max() > 1e-9


@pytest.mark.parametrize(
    ("side", "arm"), [("training", "training"), ("rollout", "rollout_prefill"), ("rollout", "rollout_decode")]
)
def test_float32_arms_stay_within_float32_error(built, tiny, uneven, side, arm):
    scored = built(side, "float32").score(uneven, arm)
    error = np.abs(scored.values - numpy_logprobs(tiny, uneven))
    # Float32 rounding of this model, by an independent plain script: sequences alone, eager.
    assert error.max() < 6 * plain_error(tiny, uneven, torch.float32), f"{arm}: {error.max():.1e}"
    assert error.max() > 0


def plain_error(folder: Path, rollout: Rollout, dtype: torch.dtype) -> float:
    """Return the largest error of a plain Hugging Face script in `dtype` against the numpy forward."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    found = []
    for sequence in range(rollout.sequence_count):
        span = rollout.span(sequence)
        ids = torch.from_numpy(rollout.token_ids[span].copy())
        with torch.no_grad():
            table = model(ids[None]).logits[0].float().log_softmax(-1)
        where = torch.from_numpy(np.flatnonzero(rollout.active[span]))
        found.append(table[where - 1, ids[where]].numpy())
    return float(np.abs(np.concatenate(found) - numpy_logprobs(folder, rollout)).max())


def test_vocabulary_rows_of_the_head_are_all_used(built, tiny, uneven):
    """Entropy and logsumexp come from every vocabulary entry: compare with numpy's full table."""
    columns = ("selected_logit", "logsumexp", "entropy", "token_rank")
    scored = built("reference", "float64", "eager").score(uneven, columns=columns)
    active = uneven.active
    span = uneven.span(1)
    logits = qwen3_logits(tiny, uneven.token_ids[span])
    where = np.flatnonzero(active[span])
    rows, ids = logits[where - 1], uneven.token_ids[span][where]
    table = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
    flat = span.start + where
    got = {name: scored.columns[name].numpy()[flat] for name in columns}
    np.testing.assert_allclose(got["selected_logit"], rows[np.arange(len(ids)), ids], rtol=1e-6)
    np.testing.assert_allclose(got["logsumexp"], np.log(np.exp(rows).sum(-1)), rtol=1e-6)
    np.testing.assert_allclose(got["entropy"], -(np.exp(table) * table).sum(-1), rtol=2e-6)
    assert got["token_rank"].tolist() == [1 + int((row > row[i]).sum()) for row, i in zip(rows, ids, strict=True)]
    np.testing.assert_allclose(
        scored.columns["selected_logprob"].numpy()[flat], table[np.arange(len(ids)), ids], atol=1e-11
    )

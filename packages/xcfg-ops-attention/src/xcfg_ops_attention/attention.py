"""The operation `attention`: one sequence, causal, queries grouped over key/value heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, int], torch.Tensor]


def attention_float32(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, first: int
) -> torch.Tensor:
    """Take query [Tq, Hq, D], key and value [Tk, Hkv, D] -> [Tq, Hq, D] in query's dtype.

    Query i stands at absolute position first + i and sees keys 0..first+i; query head h reads key head
    h // (Hq / Hkv). scale multiplies the scores. Scores, softmax and both products are computed in float32 (float64
    for a float64 query), whole, and rounded once. Raises ValueError for shapes that do not fit.
    """
    _check(query, key, value, first)
    wide = torch.promote_types(query.dtype, torch.float32)
    (rows, heads, dim), groups = query.shape, key.shape[1]
    grouped = query.to(wide).reshape(rows, groups, heads // groups, dim)
    scores = torch.einsum("qghd,kgd->ghqk", grouped, key.to(wide)) * scale
    scores = scores.masked_fill(_hidden(query, key, first), -torch.inf)
    mixed = torch.einsum("ghqk,kgd->qghd", scores.softmax(-1), value.to(wide))
    return mixed.reshape(rows, heads, dim).to(query.dtype)


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, first: int) -> torch.Tensor:
    """As attention_float32, by torch's scaled_dot_product_attention in the dtype of the inputs.

    The kernel is torch's choice. A whole prompt is asked for with is_causal, anything else with a mask, so that the
    kernels for the two may differ.
    """
    _check(query, key, value, first)
    whole = first == 0 and len(query) == len(key)
    mask = None if whole else ~_hidden(query, key, first)
    q, k, v = (item.transpose(0, 1)[None] for item in (query, key, value))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=whole, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)


def _hidden(query: torch.Tensor, key: torch.Tensor, first: int) -> torch.Tensor:
    """Return bool [Tq, Tk]: which keys lie after a query."""
    at = torch.arange(first, first + len(query), device=query.device)
    return torch.arange(len(key), device=query.device)[None] > at[:, None]


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: int) -> None:
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}, first {first}"
    if not query.dim() == key.dim() == 3 or key.shape != value.shape or query.shape[2] != key.shape[2]:
        raise ValueError(f"{shapes} do not fit")
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ValueError(f"{shapes}: the query heads do not divide into groups")
    if first < 0 or first + len(query) > len(key):
        raise ValueError(f"{shapes}: a query stands behind the last key")


def float32() -> Attention:
    """Build `torch.attention_float32`."""
    return lambda query, key, value, scale, first: attention_float32(query, key, value, scale, first)


def torch_sdpa() -> Attention:
    """Build `torch.sdpa`."""
    return lambda query, key, value, scale, first: sdpa(query, key, value, scale, first)

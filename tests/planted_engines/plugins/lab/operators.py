"""The operators: each is the float32 reference when its option is neutral, and something else when it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import gelu, silu
from xcfg_ops_attention.attention import attention_float32
from xcfg_ops_attention.rotary import rotary_float32
from xcfg_ops_gemm.norm import rms_norm_float32
from xcfg_ops_gemm.row_linear import row_linear_float32


def norm(*, eps: float) -> Callable[..., Any]:
    """RMS norm with `eps` in place of the model's."""
    return lambda x, weight, _: rms_norm_float32(x, weight, eps)


def activation(*, gate: str) -> Callable[..., Any]:
    """Gated activation with another function of the gate."""

    def operator(gates: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        wide = gates.float()
        turned = silu(wide) if gate == "silu" else gelu(wide, approximate="tanh")
        return (turned * up.float()).to(gates.dtype)

    return operator


def rotary(*, turn: float) -> Callable[..., Any]:
    """Rotary embedding whose angles are `turn` times as large: positions that are interpolated."""

    def operator(query: Any, key: Any, cos: Any, sin: Any) -> Any:
        if turn == 1.0:
            return rotary_float32(query, key, cos, sin)
        angle = torch.atan2(sin.float(), cos.float()) * turn
        return rotary_float32(query, key, angle.cos(), angle.sin())

    return operator


def attention(*, scale: float) -> Callable[..., Any]:
    """Attention whose scores are scaled once more."""
    return lambda query, key, value, factor, first: attention_float32(query, key, value, factor * scale, first)


def row_linear(*, gain: float) -> Callable[..., Any]:
    """Row-parallel product whose result is `gain` times as large."""
    return lambda x, weight: row_linear_float32(x, weight) * gain


def selected_logprob(*, temperature: float, soft_cap: float, dtype: str) -> Callable[..., Any]:
    """Log-softmax and gather, after a temperature, after a soft cap, or in another dtype."""

    def operator(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        rows = logits.float() / temperature
        if soft_cap:
            rows = soft_cap * torch.tanh(rows / soft_cap)
        table = torch.log_softmax(rows.to(getattr(torch, dtype)), dim=-1)
        return table.gather(-1, selected.unsqueeze(-1)).squeeze(-1).float()

    return operator

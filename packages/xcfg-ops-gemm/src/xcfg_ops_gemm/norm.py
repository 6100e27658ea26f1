"""The operation `norm`: root-mean-square normalisation of the last dimension, times a weight."""

from __future__ import annotations

from collections.abc import Callable

import torch

Norm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def rms_norm_float32(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Take x [..., H], weight [H], eps >= 0 -> [..., H] in x.dtype: x / sqrt(mean(x^2) + eps) * weight.

    Everything is computed in float32 (a float64 x in float64), with one rounding to x.dtype at the end, after the
    weight. Hugging Face's Qwen3 and Llama round before the weight, which is another operator.
    """
    wide = _wide(x.dtype)
    values = x.to(wide)
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    return (values * scale * weight.to(wide)).to(x.dtype)


def rms_norm_input_dtype(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As rms_norm_float32, with every intermediate rounded to x.dtype; the sum inside `mean` is torch's own."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * scale * weight.to(x.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def float32() -> Norm:
    """Build `torch.rms_norm_float32`."""
    return lambda x, weight, eps: rms_norm_float32(x, weight, eps)


def input_dtype() -> Norm:
    """Build `torch.rms_norm_input_dtype`."""
    return lambda x, weight, eps: rms_norm_input_dtype(x, weight, eps)

"""The operation `rotary`: rotary position embedding of queries and keys, halves against each other (NeoX layout)."""

from __future__ import annotations

from collections.abc import Callable

import torch

Rotary = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    tuple[torch.Tensor, torch.Tensor],
]


def rotary_float32(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take query [T, Hq, D], key [T, Hk, D], cos, sin [T, D/2] -> both rotated, each in its dtype.

    Dimension i turns with dimension i + D/2 by the angle of column i. Computed in float32 (float64 for a float64
    query), rounded once. Raises ValueError for an odd D or a table of another shape.
    """
    half = query.shape[-1] // 2
    if query.shape[-1] % 2 or cos.shape != (query.shape[0], half) or sin.shape != cos.shape:
        raise ValueError(f"cos {tuple(cos.shape)}, sin {tuple(sin.shape)} do not fit a query {tuple(query.shape)}")
    return _turn(query, cos, sin), _turn(key, cos, sin)


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    first, second = x.to(wide).chunk(2, dim=-1)
    c, s = cos.to(wide)[:, None], sin.to(wide)[:, None]
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1).to(x.dtype)


def float32() -> Rotary:
    """Build `torch.rotary_float32`."""
    return lambda query, key, cos, sin: rotary_float32(query, key, cos, sin)

"""The operation `row_linear`: one rank's share of a product whose inner dimension is split over ranks.

The partial results are added over the ranks by the runtime, in the dtype in which the operator returned them; the
runtime then rounds once to the dtype of `x`. So the returned dtype is the dtype of the reduction.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

RowLinear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def row_linear_float32(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Take x [..., K_local], weight [N, K_local] -> partial [..., N] in float32 (float64 for a float64 x)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide) @ weight.to(wide).t()


def float32() -> RowLinear:
    """Build `torch.row_linear_float32`."""
    return lambda x, weight: row_linear_float32(x, weight)

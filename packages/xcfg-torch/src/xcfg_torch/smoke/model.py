"""The synthetic model: logits that follow from id and position alone.

logits[p, v] = -|v - ((id[p] + position[p] + 1) mod V)| / 8, with V = largest id of the rollout + 17. The same
closed form as the public S0 fixture of RL-Kernel's cross-config validation, so both give the same six values.
"""

from __future__ import annotations

import torch

EXTRA_IDS = 17
SLOPE = -0.125


def vocabulary(token_ids: torch.Tensor) -> int:
    """Return V for int64 ids of any shape."""
    return int(token_ids.max()) + EXTRA_IDS


def synthetic_logits(
    token_ids: torch.Tensor, position_ids: torch.Tensor, size: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return logits [N, V] in `dtype` for int64 ids [N] and positions [N]."""
    peak = (token_ids + position_ids + 1) % size
    distance = (torch.arange(size)[None, :] - peak[:, None]).abs()
    return SLOPE * distance.to(dtype)

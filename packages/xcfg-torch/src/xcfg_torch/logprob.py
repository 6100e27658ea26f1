"""The backend `torch.log_softmax_gather`: what trainers do after the head."""

from __future__ import annotations

from collections.abc import Callable

import torch


def log_softmax_gather() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the operator: upcast to at least float32, log_softmax over the vocabulary, gather."""
    return selected_log_softmax


def selected_log_softmax(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """Return log_softmax(logits)[i, selected[i]]: [N, V], int64 [N] -> float32 (float64 stays) [N]."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(wide, dim=-1).gather(-1, selected[:, None])[:, 0]

"""The backend `torch.log_softmax_gather`: what trainers do after the head."""

from __future__ import annotations

import torch


class LogSoftmaxGather:
    """Upcast to at least float32, log_softmax over the vocabulary, gather."""

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Return log_softmax(logits)[i, selected[i]]: [N, V], int64 [N] -> float32 (float64 stays) [N].

        Holds two more copies of the logits in float32 (or float64) while it runs.
        """
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return torch.log_softmax(wide, dim=-1).gather(-1, selected[:, None])[:, 0]


def log_softmax_gather() -> LogSoftmaxGather:
    """Return a new instance of the operator."""
    return LogSoftmaxGather()

"""The two smoke operators of the runtime cpu-smoke; SMOKE_OPERATORS.md says how to remove them."""

from __future__ import annotations

from collections.abc import Callable

import torch

Operator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def logp_reference() -> Operator:
    """Return log_softmax in float32 (float64 stays) and gather: logits [N, V], selected [N] -> [N]."""

    def reference(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        return _log_softmax_gather(logits, selected)

    return reference


def logp_offset(offset: float = 0.01) -> Operator:
    """Return the reference plus `offset` nats on every value."""

    def shifted(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        return _log_softmax_gather(logits, selected) + offset

    return shifted


def _log_softmax_gather(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(wide, dim=-1).gather(-1, selected[:, None])[:, 0]

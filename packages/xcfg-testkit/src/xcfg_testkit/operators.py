"""Operators by which a runtime shows that it runs what was injected, and on which logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xcfg.schema.operators import OperatorBinding

if TYPE_CHECKING:
    import torch

    Operator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

SHIFT = 1.0


def plain() -> Operator:
    """Return float64 log-softmax and gather."""

    def selected_logprob(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        return logits.double().log_softmax(-1).gather(-1, selected.unsqueeze(-1)).squeeze(-1)

    return selected_logprob


def shifted() -> Operator:
    """Return the same, lower by SHIFT: a difference that nothing but this operator makes."""
    base = plain()

    def selected_logprob(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        return base(logits, selected) - SHIFT

    return selected_logprob


def normaliser() -> Operator:
    """Return minus the magnitude of the log-sum-exp of each row: it depends on the logits alone, not on the ids."""

    def selected_logprob(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        return -logits.double().logsumexp(-1).abs()

    return selected_logprob


def binding(name: str, side: str) -> OperatorBinding:
    """Return the binding of `plain`, `shifted` or `normaliser` on one side, as a session would hand it to a worker."""
    return OperatorBinding(
        operation="selected_logprob",
        side=side,
        requested=f"testkit.{name}",
        backend_id=f"testkit.{name}",
        factory=f"{__name__}:{name}",
        distribution="xcfg-testkit",
    )

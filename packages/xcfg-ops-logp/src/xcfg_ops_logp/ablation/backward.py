"""The analytic gradient of a log probability, and notes that only a backward pass writes.

For upstream gradients g of log p(s) and h of the log-sum-exp,

    dlogits = -g (softmax - onehot(s)) + h softmax

`note` holds what ran in the backward itself, never what was asked for: nothing is written before it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Rounding = Callable[[torch.Tensor], torch.Tensor]
Pair = tuple[torch.Tensor, torch.Tensor]
ANALYTIC, GRAPH = "softmax_minus_onehot", "autograd"


class _SoftmaxMinusOneHot(torch.autograd.Function):
    """Forward is the caller's; backward recomputes the softmax from the logits and the log-sum-exp that it saved."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        selected: torch.Tensor,
        values: Callable[[torch.Tensor], Pair],
        rounding: Rounding | None,
        note: dict[str, Any],
    ) -> Pair:
        logprob, logsumexp = values(logits)
        ctx.save_for_backward(logits, logsumexp, selected)
        ctx.rounding, ctx.note = rounding, note
        return logprob, logsumexp

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, logsumexp, selected = ctx.saved_tensors
        of_logprob, of_logsumexp = upstream
        softmax = (logits - logsumexp[:, None]).exp()
        ctx.note["backward_impl"] = ANALYTIC
        ctx.note.setdefault("grad_downcast_at", "never")
        if ctx.rounding is not None:
            softmax = ctx.rounding(softmax)
            ctx.note["grad_downcast_at"] = "softmax"
        gap = softmax.scatter_add(-1, selected[:, None], torch.full_like(logsumexp, -1)[:, None])
        return softmax * of_logsumexp[:, None] - gap * of_logprob[:, None], None, None, None, None


def softmax_minus_onehot(
    logits: torch.Tensor,
    selected: torch.Tensor,
    values: Callable[[torch.Tensor], Pair],
    rounding: Rounding | None,
    note: dict[str, Any],
) -> Pair:
    """Return `values(logits)`, log probability and log-sum-exp [n], with the analytic gradient to `logits` [n, V].

    selected: int64 [n]. rounding: of the softmax before the subtraction. note: filled in by the backward.
    """
    found: Pair = _SoftmaxMinusOneHot.apply(logits, selected, values, rounding, note)  # type: ignore[no-untyped-call]
    return found


def noted(logits: torch.Tensor, note: dict[str, Any]) -> torch.Tensor:
    """Return `logits`; when a gradient comes back to them through the forward's graph, it is noted."""

    def reached(_: torch.Tensor) -> None:
        note["backward_impl"] = GRAPH
        note.setdefault("grad_downcast_at", "never")

    if logits.requires_grad:
        logits.register_hook(reached)  # type: ignore[no-untyped-call]
    return logits


def rounded(logits: torch.Tensor, rounding: Rounding, note: dict[str, Any]) -> None:
    """Round the gradient of `logits` [n, V] when it comes back; note that it was."""

    def narrowed(gradient: torch.Tensor) -> torch.Tensor:
        note["grad_downcast_at"] = "dlogits"
        return rounding(gradient)

    if logits.requires_grad:
        logits.register_hook(narrowed)  # type: ignore[no-untyped-call]

"""The backward of a vocab-parallel log probability, from the logits again, a few rows at a time.

With p = exp(x - LSE), d log p(s) / dx = [j = s] - p, d LSE / dx = p, and d H / dx = -p (log p + H).
"""

from __future__ import annotations

from typing import Any

import torch

from xcfg_ops_logp.sharded.base import VocabParallel


class Selected(torch.autograd.Function):
    """(logits [N, w], selected [N]) -> (logprob, logsumexp, entropy), [N] each; the last is empty if not asked for."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, selected: torch.Tensor, operator: VocabParallel, entropy: bool
    ) -> tuple[torch.Tensor, ...]:
        """Score, and keep what is [N]; the logits are the caller's own."""
        values, moments, ignored = operator.forward(logits, selected, entropy=entropy)
        ctx.operator = operator
        ctx.place = operator.start, operator.entries
        entropies = values.entropy if values.entropy is not None else torch.empty_like(values.logprob[:0])
        skipped = torch.zeros_like(selected, dtype=torch.bool) if ignored is None else ignored
        ctx.save_for_backward(logits, selected, moments.top, moments.log_total, entropies, skipped)
        ctx.set_materialize_grads(False)
        return values.logprob, values.logsumexp, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor, None, None, None]:
        """Return the gradient of this rank's columns, in the dtype of the logits; nothing crosses ranks."""
        logits, selected, top, log_total, entropies, ignored = ctx.saved_tensors
        for_logprob, for_lse, for_entropy = gradients
        if for_logprob is not None:
            for_logprob = for_logprob.masked_fill(ignored, 0)
        result = torch.empty_like(logits)
        start, entries = ctx.place
        for first in range(0, len(logits), ctx.operator.chunk_rows):
            rows = slice(first, first + ctx.operator.chunk_rows)
            log_p = logits[rows].to(dtype=top.dtype, copy=True)
            log_p[:, max(0, entries - start) :] = -torch.inf
            log_p -= top[rows, None]
            log_p -= log_total[rows, None]
            p = log_p.exp()
            gradient = torch.zeros_like(p)
            if for_lse is not None:
                gradient += for_lse[rows, None] * p
            if for_entropy is not None:
                surprise = (log_p + entropies[rows, None]).mul_(p).masked_fill_(p == 0, 0)
                gradient -= for_entropy[rows, None] * surprise
            if for_logprob is not None:
                mine = for_logprob[rows]
                gradient.addcmul_(mine[:, None], p.masked_fill(ignored[rows, None], 0), value=-1)
                index = selected[rows] - start
                inside = (index >= 0) & (index < p.shape[1])
                gradient.scatter_add_(
                    1,
                    index.clamp(0, p.shape[1] - 1)[:, None],
                    torch.where(inside, mine, torch.zeros_like(mine))[:, None],
                )
            result[rows] = gradient
        return result, None, None, None

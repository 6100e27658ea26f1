"""An online log-sum-exp over blocks of logits: one block at a time, folded into what was seen before.

Each state has the maximum so far, how many logits equal it, and the sum of the others relative to it, so that a token
that is almost certain keeps its digits: the log of the whole is maximum + log1p(ties - 1 + others).
"""

from __future__ import annotations

import torch

from xcfg_ops_logp.ablation.operator import Partial
from xcfg_ops_logp.reference import tree_sum


def block(logits: torch.Tensor) -> Partial:
    """Return the state of logits [n, w] alone, differentiable; the maximum is a constant to a gradient."""
    top = logits.amax(dim=-1).detach()
    shifted = logits - top.masked_fill(top == -torch.inf, 0)[:, None]
    maxima = shifted == 0
    terms = shifted.exp()
    return Partial(top, terms.masked_fill(~maxima, 0).sum(dim=-1), tree_sum(terms.masked_fill(maxima, 0)))


def folded(seen: Partial, new: Partial) -> Partial:
    """Return the state of both together, each [n]."""
    top = torch.maximum(seen.top, new.top)
    ties, others = torch.zeros_like(top), torch.zeros_like(top)
    for part in (seen, new):
        highest = part.top == top
        scale = (part.top - top).masked_fill(highest, 0).exp()
        ties = ties + part.ties.masked_fill(~highest, 0)
        others = others + torch.where(highest, part.others, (part.ties + part.others) * scale)
    return Partial(top, ties, others)


def log_total(state: Partial) -> torch.Tensor:
    """Return the log-sum-exp relative to the maximum [n]."""
    return torch.log1p((state.ties - 1) + state.others)

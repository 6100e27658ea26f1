"""What a virtual rank hands on, and in which order the partial sums of the ranks become one."""

from __future__ import annotations

from typing import NamedTuple

import torch

from xcfg_ops_logp.ablation.descriptor import ORDERS
from xcfg_ops_logp.reference import tree_sum


class Partial(NamedTuple):
    """Of one range, each [n]: its maximum, how many entries equal it, the sum of the others relative to it."""

    top: torch.Tensor
    ties: torch.Tensor
    others: torch.Tensor


def log_total(state: Partial) -> torch.Tensor:
    """Return the log-sum-exp relative to the maximum [n]."""
    return torch.log1p((state.ties - 1) + state.others)


def summed(local: torch.Tensor, top: torch.Tensor | None) -> Partial:
    """Return the partial of one block [n, w], relative to `top` [n] where the ranks agreed on a maximum.

    Maxima are constants to a gradient, and ties are exp(0) each: it is softmax.
    """
    own = (local.amax(dim=-1) if top is None else top).detach()
    shifted = local - own.masked_fill(own == -torch.inf, 0)[:, None]
    maxima = shifted == 0
    terms = shifted.exp()
    return Partial(own, terms.masked_fill(~maxima, 0).sum(dim=-1), tree_sum(terms.masked_fill(maxima, 0)))


def added(partials: list[Partial], order: str) -> Partial:
    """Return the partial of all ranges together, relative to their common maximum."""
    tops = torch.stack([item.top for item in partials], dim=-1)
    top = tops.amax(dim=-1)
    counts = torch.stack([item.ties for item in partials], dim=-1)
    others = torch.stack([item.others for item in partials], dim=-1)
    highest = tops == top[:, None]
    scale = (tops - top[:, None]).exp()
    terms = torch.where(highest, others, (counts + others) * scale)
    count = counts.masked_fill(~highest, 0).sum(dim=-1)
    return Partial(top, count, in_order(terms, order))


def in_order(terms: torch.Tensor, order: str) -> torch.Tensor:
    """Return the sum over ranks of `terms` [n, ranks] as [n], added in `order`; overwrites them for a tree."""
    if order == "pairwise_tree":
        return tree_sum(terms)
    ordered = terms.unbind(-1)
    total = torch.zeros_like(ordered[0])
    for term in ordered if order == ORDERS[0] else reversed(ordered):
        total = total + term
    return total

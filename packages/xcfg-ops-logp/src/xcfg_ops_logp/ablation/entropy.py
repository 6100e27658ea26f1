"""The entropy of a row, nats: of the whole row at once, or merged from what every virtual rank sums up.

    H = lse - sum over j of p[j] x[j]

`whole` takes x relative to the row's maximum, so that the two terms are of the size of H. `merged` is what a
vocab-parallel trainer does: each rank r hands on m_r, its sum of exp(x - m_r) and its sum of exp(x - m_r) x. x is not
shifted there, so that the difference of lse and the mean logit is rounded at the size of the logits.
"""

from __future__ import annotations

import torch

from xcfg_ops_logp.ablation.partials import Partial, in_order, log_total
from xcfg_ops_logp.reference import tree_sum


def whole(logits: torch.Tensor) -> torch.Tensor:
    """Logits [n, V] -> entropy [n] in their dtype; -inf entries take no part."""
    shifted = logits - logits.amax(dim=-1, keepdim=True).detach()
    terms = shifted.exp()
    gaps = tree_sum((terms * shifted).masked_fill(terms == 0, 0))
    total = tree_sum(terms.clone())
    return total.log() - gaps / total


def weighted(local: torch.Tensor, top: torch.Tensor | None) -> torch.Tensor:
    """Return one rank's sum of exp(x - top) x over its logits [n, w], as [n]; top as for `partials.summed`."""
    own = (local.amax(dim=-1) if top is None else top).detach()
    terms = (local - own.masked_fill(own == -torch.inf, 0)[:, None]).exp()
    return tree_sum((terms * local).masked_fill(terms == 0, 0))


def merged(partials: list[Partial], sums: list[torch.Tensor], together: Partial, order: str) -> torch.Tensor:
    """Return the entropy [n]. sums: `weighted` of every rank, each [n]; together: the partials, merged in `order`."""
    scale = torch.stack([(item.top - together.top).exp() for item in partials], dim=-1)
    mean = in_order(torch.stack(sums, dim=-1) * scale, order) / (together.ties + together.others)
    return together.top + log_total(together) - mean

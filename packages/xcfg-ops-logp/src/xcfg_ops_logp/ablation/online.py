"""An online log-sum-exp over blocks of logits: the partial of one block at a time, folded into what was seen before.

Each partial has the maximum so far, how many logits equal it, and the sum of the others relative to it, so that a token
that is almost certain keeps its digits: the log of the whole is maximum + log1p(ties - 1 + others).
"""

from __future__ import annotations

import torch

from xcfg_ops_logp.ablation.partials import Partial


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

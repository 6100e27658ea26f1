"""The whole vocabulary on every rank: logits are gathered, then one rank's arithmetic is done by all."""

from __future__ import annotations

import torch

from xcfg_ops_logp.sharded.base import Moments, VocabParallel
from xcfg_ops_logp.sharded.tree import fold, merge, roots


class AllGatherLogits(VocabParallel):
    """The backend `xcfg.allgather_logits_logp`: the bits of the tree, since the order is that of the global index."""

    def moments(self, local: torch.Tensor, *, entropy: bool) -> Moments:
        """Return the moments of n rows from all columns, in the working dtype."""
        widths = tuple(stop - start for start, stop in self.shards.bounds)
        shares = self.ranks.columns(local, widths)
        ordered = [shares[rank] for rank in self.shards.order]
        whole = torch.cat(ordered, dim=-1) if len(ordered) > 1 else ordered[0]
        return _Whole().moments(whole, entropy=entropy)


class _Whole(VocabParallel):
    """One rank that holds every column."""

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        return merge(zip(roots(0, terms.shape[1]), fold(terms, 0).unbind(-1), strict=True))

"""An order-free oracle: exponentials as integers, whose sum is the same in every order and on every split."""

from __future__ import annotations

import torch
from xcfg.errors import UsageError

from xcfg_ops_logp.sharded.base import BLOCK, DEFAULT_CHUNK_ROWS, VocabParallel

BITS = 44
"""Binary places. One term is at most 1, so each is off by at most 2^-45, and fewer than 2^19 of them fit in int64."""
ENTRIES = (1 << (63 - BITS)) - 1


class FixedPoint(VocabParallel):
    """The backend `xcfg.fixed_point_logp`: float64 exponentials relative to the global maximum, summed as int64.

    Invariant by construction, not by an order, so that it is independent of the tree that it is held against.
    """

    def __init__(self, *, chunk_rows: int = DEFAULT_CHUNK_ROWS, ignore_index: int | None = None) -> None:
        """Take the options of every backend here; the accumulator is float64 before it is int64."""
        super().__init__(chunk_rows=chunk_rows, accum_dtype="float64", ignore_index=ignore_index)

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum [n] over all ranks; UsageError for more than ENTRIES columns."""
        if self.shards.total > ENTRIES:
            raise UsageError(f"{self.shards.total} columns do not fit: {BITS} binary places leave room for {ENTRIES}")
        terms.mul_(float(1 << BITS)).round_()
        parts = [block.to(torch.int64).sum(dim=-1) for block in torch.split(terms, BLOCK, dim=-1)]
        whole = torch.stack(parts).sum(dim=0)
        return self.ranks.add(whole).to(torch.float64) / float(1 << BITS)

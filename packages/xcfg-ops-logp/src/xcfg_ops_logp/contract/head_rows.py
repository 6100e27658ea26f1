"""The head's rows beyond the real vocabulary: under `include` their logits enter every sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xcfg.errors import UsageError
from xcfg.schema._base import Record

if TYPE_CHECKING:
    import torch


class PadRows(Record, frozen=True):
    """num_pad_rows, and the smallest and largest Euclidean norm of those rows in float64, 0 where there are none.

    pad_row_init: none (no such row), zero (every one is zero, so that its logit is 0 for every token), nonzero.
    """

    num_pad_rows: int
    smallest: float
    largest: float
    pad_row_init: str


def pad_rows(weight: torch.Tensor, org_vocab_size: int, *, start: int = 0) -> PadRows:
    """Return the norms of the rows of `weight` [rows, hidden] whose global id is `org_vocab_size` or above.

    start: global id of the first row, for a shard. Raises UsageError for another shape or a negative start.
    """
    import torch

    if weight.ndim != 2 or start < 0 or org_vocab_size < 1:
        raise UsageError(
            f"a head of shape {tuple(weight.shape)} from id {start} for {org_vocab_size} ids",
            hint="Give the rows of one shard [rows, hidden] and the global id of the first.",
        )
    beyond = weight.detach()[max(0, org_vocab_size - start) :]
    norms = torch.linalg.vector_norm(beyond.double(), dim=1)
    if not len(norms):
        return PadRows(num_pad_rows=0, smallest=0.0, largest=0.0, pad_row_init="none")
    largest = float(norms.max())
    return PadRows(
        num_pad_rows=len(norms),
        smallest=float(norms.min()),
        largest=largest,
        pad_row_init="zero" if largest == 0 else "nonzero",
    )

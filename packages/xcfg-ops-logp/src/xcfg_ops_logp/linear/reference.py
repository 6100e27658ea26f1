"""The float64 reference of `linear_selected_logprob`.

The reference widens hidden and weight, forms the product in float64, a block of rows and a part of the vocabulary at a
time, and hands the block to the reference of `selected_logprob`. Its sums over K are the library's, in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xcfg_ops_logp.inputs import ignore_id, positive
from xcfg_ops_logp.linear.inputs import check_linear
from xcfg_ops_logp.reference import Values, evaluate

if TYPE_CHECKING:
    import torch

    from xcfg_ops_logp.linear.inputs import LinearOperator

DEFAULT_CHUNK_ROWS = 32
PART = 8192
"""Entries of the vocabulary that are widened at a time."""


def build(*, chunk_rows: int = DEFAULT_CHUNK_ROWS, ignore_index: int | None = None) -> LinearOperator:
    """Return the reference; `chunk_rows` rows of logits are held in float64 at a time."""
    positive("chunk_rows", chunk_rows)
    ignore_id(ignore_index)

    def reference_linear_logprob(hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        return reference(hidden, weight, selected, chunk_rows=chunk_rows, ignore_index=ignore_index).logprob

    return reference_linear_logprob


def reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    selected: torch.Tensor,
    *,
    chunk_rows: int = DEFAULT_CHUNK_ROWS,
    ignore_index: int | None = None,
) -> Values:
    """Return log probability, log-sum-exp and entropy, float64 [N], nats; no gradient. Inputs as in `check_linear`."""
    import torch

    check_linear(hidden, weight, selected, ignore_index=ignore_index)
    result = torch.empty(3, hidden.shape[0], dtype=torch.float64, device=hidden.device)
    with torch.no_grad():
        for start in range(0, hidden.shape[0], chunk_rows):
            rows = slice(start, start + chunk_rows)
            wide = hidden[rows].double()
            logits = torch.cat([wide @ part.double().t() for part in torch.split(weight, PART)], dim=1)
            for row, found in zip(result, evaluate(logits, selected[rows], ignore_index=ignore_index), strict=True):
                row[rows] = found
    return Values(result[0], result[1], result[2])

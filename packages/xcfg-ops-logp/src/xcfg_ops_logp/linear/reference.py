"""The float64 reference of `linear_selected_logprob`, and the same in torch's arithmetic in blocks of rows.

The reference widens hidden and weight, forms the product in float64, a block of rows and a part of the vocabulary at a
time, and hands the block to the reference of `selected_logprob`. Its sums over K are the library's, in float64.

The torch backend is what both engines do without an operator, a block of rows at a time: logits in the dtype of the
weights, then log_softmax in float32 and gather. Its backward forms the logits of a block again, so that no more than
one block exists; the gradient of the weights is added up over the blocks in the weights' own dtype, by autograd.
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
TORCH_CHUNK_ROWS = 512
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


def build_torch(*, chunk_rows: int = TORCH_CHUNK_ROWS, ignore_index: int | None = None) -> LinearOperator:
    """Return torch's arithmetic, `chunk_rows` rows at a time, float32 [N], with gradients of hidden and weight."""
    positive("chunk_rows", chunk_rows)
    ignore_id(ignore_index)

    def torch_linear_logprob(hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        import torch
        from torch.utils.checkpoint import checkpoint

        ignored = check_linear(hidden, weight, selected, ignore_index=ignore_index)
        ids = selected if ignored is None else selected.masked_fill(ignored, 0)
        blocks = [
            checkpoint(_block, rows, weight, part, use_reentrant=False)
            for rows, part in zip(torch.split(hidden, chunk_rows), torch.split(ids, chunk_rows), strict=True)
        ]
        found = torch.cat(blocks)
        return found if ignored is None else found.masked_fill(ignored, torch.nan)

    return torch_linear_logprob


def _block(hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    import torch

    logits = hidden @ weight.t()
    wide = torch.promote_types(logits.dtype, torch.float32)
    return torch.log_softmax(logits, dim=-1, dtype=wide).gather(-1, selected.unsqueeze(-1)).squeeze(-1)

"""`linear_selected_logprob` in torch's arithmetic, a block of rows at a time.

What both engines do without an operator, in blocks: logits in the dtype of the weights, then log_softmax in float32 and
gather. The backward forms the logits of a block again, so that no more than one block exists; the gradient of the
weights is added up over the blocks in the weights' own dtype, by autograd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xcfg_ops_logp.inputs import ignore_id, positive
from xcfg_ops_logp.linear.inputs import check_linear

if TYPE_CHECKING:
    import torch

    from xcfg_ops_logp.linear.inputs import LinearOperator

DEFAULT_CHUNK_ROWS = 512


def build(*, chunk_rows: int = DEFAULT_CHUNK_ROWS, ignore_index: int | None = None) -> LinearOperator:
    """Return the operator: float32 [N], float64 for float64 weights, nats, with gradients of hidden and weight.

    chunk_rows: rows of logits that exist at a time. Raises UsageError for wrong options.
    """
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

"""The head's product hidden [n, K] times weight [w, K] transposed, by the library or in a fixed order over K.

A library picks its kernel, and with that the order in which K products are added, by the number of rows and columns. In
the fixed order every product and every sum is an elementwise operation: blocks of DEPTH entries of K are each added in
a binary tree, and the blocks from the first to the last, in float32 or wider. So the bits of a logit depend on its own
row and column alone. It is slow, and its gradients are the library's products.
"""

from __future__ import annotations

from typing import Any

import torch

from xcfg_ops_logp.reference import tree_sum

DEPTH = 64
"""Entries of K in one tree."""
ROWS, ELEMENTS = 64, 1 << 22
"""Rows, and products of two entries, that exist at a time; they move no bit."""


def head_product(hidden: torch.Tensor, weight: torch.Tensor, kernel: str) -> torch.Tensor:
    """Return logits [n, w] in the dtype of both operands, differentiable in both. kernel: torch or fixed_order."""
    if kernel == "torch":
        return hidden @ weight.t()
    return _FixedOrder.apply(hidden, weight)  # type: ignore[no-any-return,no-untyped-call]


class _FixedOrder(torch.autograd.Function):
    """(hidden, weight) -> logits."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Keep both inputs."""
        ctx.save_for_backward(hidden, weight)
        return fixed_order(hidden, weight)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Two products of the library."""
        hidden, weight = ctx.saved_tensors
        of_hidden, of_weight = ctx.needs_input_grad
        return slope @ weight if of_hidden else None, slope.t() @ hidden if of_weight else None


def fixed_order(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return hidden [n, K] times weight [w, K] transposed, each logit in one order; no gradient."""
    sums = torch.promote_types(hidden.dtype, torch.float32)
    logits = torch.empty(hidden.shape[0], weight.shape[0], dtype=hidden.dtype, device=hidden.device)
    width = max(1, ELEMENTS // (ROWS * DEPTH))
    for row in range(0, hidden.shape[0], ROWS):
        rows = hidden[row : row + ROWS].to(sums).t().contiguous()
        for column in range(0, weight.shape[0], width):
            columns = weight[column : column + width].to(sums).t().contiguous()
            logits[row : row + ROWS, column : column + width] = _tile(rows, columns)
    return logits


def _tile(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """[K, n], [K, w] -> [n, w], in their dtype."""
    total = torch.zeros(rows.shape[1], columns.shape[1], dtype=rows.dtype, device=rows.device)
    for start in range(0, len(rows), DEPTH):
        depth = slice(start, start + DEPTH)
        products = rows[depth, :, None] * columns[depth, None, :]
        total = total + tree_sum(products.permute(1, 2, 0))
    return total

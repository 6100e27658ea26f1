"""The reference of `selected_logprob`: what every other backend is measured against.

For a row x of V logits and a selected id s, with m = max x and a = an index where x is m,

    log p(s) = (x[s] - m) - log1p(sum over j != a of exp(x[j] - m))

in float64. Leaving the maximum out of the sum and adding it back through log1p keeps the digits of tokens that are
almost certain: at p = 1 - 1e-20 the plain form gives 0, this one -1e-20. The sum is a binary tree over the
vocabulary index, made of elementwise additions of halves. A library reduction may split one long row between
threads and many rows not at all, so its bits depend on the number of rows; the tree's do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xcfg.errors import IdentityError, UsageError

if TYPE_CHECKING:
    import torch

DEFAULT_CHUNK_ROWS = 32


def build(*, chunk_rows: int = DEFAULT_CHUNK_ROWS) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the operator; `chunk_rows` rows are held in float64 at a time. Raises UsageError below 1."""
    if type(chunk_rows) is not int or chunk_rows < 1:
        raise UsageError(f"chunk_rows is {chunk_rows!r}, not a positive integer")

    def reference_logprob(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        return selected_logprob(logits, selected, chunk_rows=chunk_rows)

    return reference_logprob


def selected_logprob(
    logits: torch.Tensor, selected: torch.Tensor, *, chunk_rows: int = DEFAULT_CHUNK_ROWS
) -> torch.Tensor:
    """Return the log probabilities, float64 [N] on the device of the logits, in nats; no gradient.

    logits: floating [N, V], the whole vocabulary. selected: int64 [N] in [0, V), on the same device.

    A row without a finite maximum (a NaN, a +inf, or -inf throughout) has no distribution: its result is NaN.
    A selected -inf beside finite logits is -inf. Raises UsageError for wrong dtypes, shapes or devices,
    IdentityError for an id outside the vocabulary.
    """
    import torch

    _check(logits, selected)
    result = torch.empty(logits.shape[0], dtype=torch.float64, device=logits.device)
    with torch.no_grad():
        for start in range(0, logits.shape[0], chunk_rows):
            rows = slice(start, start + chunk_rows)
            result[rows] = _chunk(logits[rows], selected[rows])
    return result


def _chunk(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """float64 [n] of a few rows; the float64 copy is worked on in place."""
    import torch

    shifted = logits.to(dtype=torch.float64, memory_format=torch.contiguous_format, copy=True)
    top, where = shifted.max(dim=-1, keepdim=True)
    shifted -= top
    chosen = shifted.gather(-1, selected.unsqueeze(-1)).squeeze(-1)
    others = tree_sum(shifted.exp_().scatter_(-1, where, 0.0))
    return torch.where(top.squeeze(-1).isfinite(), chosen - others.log1p(), torch.nan)


def tree_sum(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over the last dimension of `values` [n, V] as [n], in a fixed binary tree; overwrites them.

    One level adds the upper half of the remaining columns to the lower half, so every addition is elementwise
    and its order depends on V alone: not on n, on threads or on the device.
    """
    width = values.shape[-1]
    while width > 1:
        half = width // 2
        values[:, :half] += values[:, width - half : width]
        width -= half
    return values[:, 0]


def _check(logits: torch.Tensor, selected: torch.Tensor) -> None:
    import torch

    if logits.ndim != 2 or logits.shape[1] < 1 or not logits.is_floating_point():
        raise UsageError(
            f"logits are {logits.dtype} {tuple(logits.shape)}", hint="They must be floating [N, V] with V >= 1."
        )
    if selected.dtype != torch.int64 or selected.shape != logits.shape[:1]:
        raise UsageError(
            f"selected ids are {selected.dtype} {tuple(selected.shape)}, logits are {tuple(logits.shape)}",
            hint="They must be int64 [N], one per row of logits.",
        )
    if selected.device != logits.device:
        raise UsageError(f"selected ids are on {selected.device}, logits on {logits.device}")
    outside = (selected < 0) | (selected >= logits.shape[1])
    if bool(outside.any()):
        row = int(outside.nonzero()[0, 0])
        raise IdentityError(
            f"the selected id {int(selected[row])} in row {row} is outside the vocabulary of {logits.shape[1]}",
            hint="The logits belong to another vocabulary, or to one shard of it.",
        )

"""The references of `selected_logprob`: what every other backend is measured against.

For a row x of V logits and a selected id s, with m = max x and a = an index where x is m,

    log p(s) = (x[s] - m) - log1p(sum over j != a of exp(x[j] - m))

in float64. Leaving the maximum out of the sum and adding it back through log1p keeps the digits of tokens that are
almost certain: at p = 1 - 1e-20 the plain form gives 0, this one -1e-20. The sum is a binary tree over the
vocabulary index, made of elementwise additions of halves. A library reduction may split one long row between
threads and many rows not at all, so its bits depend on the number of rows; the tree's do not.

The float32 reference is the same arithmetic on the same inputs: both widen one source tensor, so that what lies between
them is what float32 rounds. Logits that float32 cannot hold are refused there, since narrowing them is another input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from xcfg.errors import UsageError

from xcfg_ops_logp.inputs import check, ignore_id, positive

if TYPE_CHECKING:
    import torch

    Operator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

DEFAULT_CHUNK_ROWS = 32


class Values(NamedTuple):
    """Each [N], nats. entropy: None where it was not asked for."""

    logprob: torch.Tensor
    logsumexp: torch.Tensor
    entropy: torch.Tensor | None


def build(*, chunk_rows: int = DEFAULT_CHUNK_ROWS, ignore_index: int | None = None) -> Operator:
    """Return the operator; `chunk_rows` rows are held in float64 at a time. Raises UsageError for wrong options."""
    return _operator("float64", chunk_rows, ignore_index)


def build_float32(*, chunk_rows: int = DEFAULT_CHUNK_ROWS, ignore_index: int | None = None) -> Operator:
    """Return the same operator in float32; it refuses float64 logits."""
    return _operator("float32", chunk_rows, ignore_index)


def _operator(dtype: str, chunk_rows: int, ignore_index: int | None) -> Operator:
    positive("chunk_rows", chunk_rows)
    ignore_id(ignore_index)

    def reference_logprob(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        found = evaluate(logits, selected, dtype=dtype, chunk_rows=chunk_rows, ignore_index=ignore_index, entropy=False)
        return found.logprob

    return reference_logprob


def selected_logprob(
    logits: torch.Tensor, selected: torch.Tensor, *, chunk_rows: int = DEFAULT_CHUNK_ROWS
) -> torch.Tensor:
    """Return the log probabilities, float64 [N] on the device of the logits, in nats; see `evaluate`."""
    return evaluate(logits, selected, chunk_rows=chunk_rows, entropy=False).logprob


def both(
    logits: torch.Tensor, selected: torch.Tensor, *, chunk_rows: int = DEFAULT_CHUNK_ROWS
) -> tuple[Values, Values]:
    """Return the float64 and the float32 values of one source tensor; UsageError for float64 logits."""
    narrow = evaluate(logits, selected, dtype="float32", chunk_rows=chunk_rows)
    return evaluate(logits, selected, chunk_rows=chunk_rows), narrow


def evaluate(
    logits: torch.Tensor,
    selected: torch.Tensor,
    *,
    dtype: str = "float64",
    chunk_rows: int = DEFAULT_CHUNK_ROWS,
    ignore_index: int | None = None,
    entropy: bool = True,
) -> Values:
    """Return log probability, log-sum-exp and entropy, `dtype` [N] on the device of the logits; no gradient.

    logits: floating [N, V], the whole vocabulary. selected: int64 [N] in [0, V), on the same device. dtype: float64 or
    float32. ignore_index: rows of this id have no log probability, NaN.

    A row without a finite maximum (a NaN, a +inf, or -inf throughout) has no distribution: its results are NaN.
    A selected -inf beside finite logits is -inf. Raises UsageError for wrong dtypes, shapes or devices,
    IdentityError for an id outside the vocabulary.
    """
    import torch

    width = logits.shape[1] if logits.ndim == 2 else 0
    ignored = check(logits, selected, width, ignore_index=ignore_index)
    kind = getattr(torch, dtype)
    if kind == torch.float32 and logits.dtype == torch.float64:
        raise UsageError(
            "the float32 reference was handed float64 logits",
            hint="Both references take the same inputs, and float32 does not hold these.",
        )
    ids = selected if ignored is None else selected.masked_fill(ignored, 0)
    result = torch.empty(3, logits.shape[0], dtype=kind, device=logits.device)
    with torch.no_grad():
        for start in range(0, logits.shape[0], chunk_rows):
            rows = slice(start, start + chunk_rows)
            _chunk(logits[rows], ids[rows], result[:, rows], entropy=entropy)
        if ignored is not None:
            result[0].masked_fill_(ignored, torch.nan)
    return Values(result[0], result[1], result[2] if entropy else None)


def _chunk(logits: torch.Tensor, selected: torch.Tensor, result: torch.Tensor, *, entropy: bool) -> None:
    """Fill `result` [3, n] for a few rows; the widened copy is worked on in place."""
    import torch

    shifted = logits.to(dtype=result.dtype, memory_format=torch.contiguous_format, copy=True)
    top, where = shifted.max(dim=-1, keepdim=True)
    shifted -= top
    chosen = shifted.gather(-1, selected.unsqueeze(-1)).squeeze(-1)
    terms = shifted.exp() if entropy else shifted.exp_()
    gaps = tree_sum(shifted.neg_().mul_(terms).masked_fill_(terms == 0, 0)) if entropy else None
    others = tree_sum(terms.scatter_(-1, where, 0.0))
    top = top.squeeze(-1)
    log_total = others.log1p()
    found = [chosen - log_total, top + log_total]
    if gaps is not None:
        found.append(log_total + gaps / (1 + others))
    for row, values in zip(result, found, strict=False):
        row.copy_(torch.where(top.isfinite(), values, torch.nan))


def tree_sum(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over the last dimension of `values` [..., V] as [...], in a fixed binary tree; overwrites them.

    One level adds the upper half of the remaining columns to the lower half, so every addition is elementwise
    and its order depends on V alone: not on n, on threads or on the device.
    """
    width = values.shape[-1]
    while width > 1:
        half = width // 2
        values[..., :half] += values[..., width - half : width]
        width -= half
    return values[..., 0]

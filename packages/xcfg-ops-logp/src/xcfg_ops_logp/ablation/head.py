"""The backend `xcfg.ablation_linear_logp`: head product and log probability, one choice of them at a time.

A call walks over the rows, as many in one product as `materialization` says, and over the vocabulary, whole or in
blocks. Of each block it keeps the selected logit and the state of the log-sum-exp (online.py); logits of a block that
is not the whole vocabulary exist once in the forward and once more in the backward. With all options at their defaults
the product is the library's over all rows, and the sum is the reference's formula in float32.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint
from xcfg.errors import UsageError

from xcfg_ops_logp.ablation.head_descriptor import ACTS_WHERE, BLOCK_COLUMNS, CHUNK_ROWS, OPTIONS
from xcfg_ops_logp.ablation.head_product import head_product
from xcfg_ops_logp.ablation.online import folded
from xcfg_ops_logp.ablation.operator import DTYPES
from xcfg_ops_logp.ablation.partials import Partial, log_total, summed
from xcfg_ops_logp.inputs import ignore_id
from xcfg_ops_logp.linear.inputs import check_linear

WIDE = {**DTYPES, "float64": torch.float64}


class HeadValues(NamedTuple):
    """Each [N], float32 or float64: log probability in nats, the selected logit, the log-sum-exp."""

    logprob: torch.Tensor
    selected_logit: torch.Tensor
    logsumexp: torch.Tensor


class AblationLinear:
    """One selected log probability from hidden states; see head_descriptor.OPTIONS.

    stated: of the last call, what its tensors were, and how many rows it had. An option that changed nothing, such as a
    chunk as wide as all rows, is not stated as what ran.
    """

    acts_where = ACTS_WHERE
    offers = ("selected_logit", "logsumexp", "exact_logprob")

    def __init__(self, **options: Any) -> None:
        """Take the options by name; UsageError for values outside their domains."""
        self.options: dict[str, Any] = {item.name: item.default for item in OPTIONS}
        unknown = options.keys() - self.options.keys()
        if unknown:
            raise TypeError(f"no option {min(unknown)!r}; known: {', '.join(self.options)}")
        self.options |= options
        for item in OPTIONS:
            allowed = getattr(item.domain, "values", None)
            value = self.options[item.name]
            if allowed is not None and value not in allowed:
                raise UsageError(f"{item.name} is {value!r}", hint=f"Known: {', '.join(allowed)}.")
        for name in ("chunk_size", "vocab_block_size"):
            if type(self.options[name]) is not int or self.options[name] < 0:
                raise UsageError(f"{name} is {self.options[name]!r}, not an integer of at least 0")
        self.ignore_index = ignore_id(self.options["ignore_index"])
        self.transforms: tuple[str, ...] = ()
        self.scored_ids: torch.Tensor | None = None
        self.stated: dict[str, Any] = {}

    def __call__(self, hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Return the log probabilities [N], nats; see `values`."""
        return self.values(hidden, weight, selected).logprob

    def columns(self, hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the columns that it `offers` [N], of the logits of a call with these arguments; see `values`.

        exact_logprob: float64, the sum in float64 over the same logits. So what lies between it and the value is what
        the sum rounded, and what lies between those of two calls is what their products differ by.
        """
        with torch.no_grad():
            own = self.values(hidden, weight, selected)
            exact = self.values(hidden, weight, selected, sums=torch.float64)
        return {
            "selected_logit": own.selected_logit,
            "logsumexp": own.logsumexp,
            "exact_logprob": exact.logprob,
        }

    def values(
        self, hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor, *, sums: torch.dtype = torch.float32
    ) -> HeadValues:
        """Hidden [N, K], weight [V, K] of one dtype, selected int64 [N] -> values, differentiable in both.

        They are in `sums`, or float64 where the product is. A row whose logits hold a NaN or a +inf is NaN. UsageError
        for wrong dtypes and shapes, IdentityError for an id outside the vocabulary.
        """
        ignored = check_linear(hidden, weight, selected, ignore_index=self.ignore_index)
        ids = selected if ignored is None else selected.masked_fill(ignored, 0)
        gemm = self.options["head_gemm_dtype"]
        dtype = hidden.dtype if gemm == "as_is" else WIDE[gemm]
        rows, columns = self._rows(len(hidden)), self._columns(len(weight))
        head = weight.to(dtype)
        parts = [
            self._chunk(hidden[start : start + rows].to(dtype), head, ids[start : start + rows], columns, sums)
            for start in range(0, max(1, len(hidden)), rows)
        ]
        found = HeadValues(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))
        self._state(len(hidden), len(weight), rows, columns, cast=dtype != hidden.dtype)
        return found if ignored is None else found._replace(logprob=found.logprob.masked_fill(ignored, torch.nan))

    def _rows(self, count: int) -> int:
        """Return the rows of one product."""
        how = self.options["materialization"]
        if how == "last_token_only":
            return 1
        return max(1, min(count, self.options["chunk_size"] or CHUNK_ROWS) if how == "chunked" else count)

    def _columns(self, entries: int) -> int:
        """Return the columns of one block of the vocabulary."""
        if self.options["fusion_impl"] == "none":
            return entries
        return min(entries, self.options["vocab_block_size"] or min(BLOCK_COLUMNS, -(-entries // 2)))

    def _chunk(
        self, hidden: torch.Tensor, head: torch.Tensor, ids: torch.Tensor, columns: int, sums: torch.dtype
    ) -> HeadValues:
        kept = columns == len(head) or not torch.is_grad_enabled()
        run = _block if kept else partial(checkpoint, _block, use_reentrant=False)
        kernel = self.options["head_gemm_kernel"]
        blocks = (
            run(hidden, head[start : start + columns], ids - start, kernel, sums)
            for start in range(0, len(head), columns)
        )
        state, picked = reduce(lambda seen, new: (folded(seen[0], new[0]), seen[1] + new[1]), blocks)
        total = log_total(state)
        void = ~state.top.isfinite()
        logprob, logsumexp = (picked - state.top) - total, state.top + total
        return HeadValues(logprob.masked_fill(void, torch.nan), picked, logsumexp.masked_fill(void, torch.nan))

    def _state(self, count: int, entries: int, rows: int, columns: int, *, cast: bool) -> None:
        """Keep what this call does; an option without effect did not run."""
        split, tiled, options = rows < count, columns < entries, self.options
        chunked = split and options["materialization"] == "chunked"
        self.stated = {
            "options": {
                "materialization": options["materialization"] if split else "full_prefill",
                "chunk_size": options["chunk_size"] if chunked else 0,
                "head_gemm_kernel": options["head_gemm_kernel"],
                "head_gemm_dtype": options["head_gemm_dtype"] if cast else "as_is",
                "fusion_impl": options["fusion_impl"] if tiled else "none",
                "vocab_block_size": options["vocab_block_size"] if tiled else 0,
            },
            "vocabulary": {"policy": "mask", "real": entries, "padded": entries},
            "rows": count,
            "by_rows": ("materialization", "chunk_size"),
        }


def _block(
    hidden: torch.Tensor, part: torch.Tensor, ids: torch.Tensor, kernel: str, sums: torch.dtype
) -> tuple[Partial, torch.Tensor]:
    """Return the state of one block of the vocabulary [w, K], and the selected logits [n], 0 where it has not the id.

    ids: int64 [n], counted from the first entry of the block. sums: dtype that logits are widened to, unless wider.
    """
    logits = head_product(hidden, part, kernel)
    wide = logits.to(torch.promote_types(logits.dtype, sums))
    inside = (ids >= 0) & (ids < len(part))
    mine = wide.gather(-1, ids.clamp(0, len(part) - 1)[:, None])[:, 0]
    return summed(wide, None), mine.masked_fill(~inside, 0)

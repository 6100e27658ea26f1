"""The frame of every vocab-parallel backend: shards, chunks of rows, the selected logit, values and form.

For a row x with global maximum m, c entries equal to m, and the others' sum o = sum of exp(x[j] - m) over x[j] < m,

    log p(s) = (x[s] - m) - log1p((c - 1) + o)

The maximum and the count are exact whatever the order of ranks, so that all that a topology can move is the sum o.
Leaving the maxima out of it keeps the digits of tokens that are almost certain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from xcfg.errors import UsageError

from xcfg_ops_logp.inputs import accumulator, check, check_form, ignore_id, positive
from xcfg_ops_logp.reference import Values
from xcfg_ops_logp.sharded.exchange import Ranks, Shards

DEFAULT_CHUNK_ROWS = 64
BLOCK = 8192
"""Columns widened to integers at a time."""


def counted(mask: torch.Tensor) -> torch.Tensor:
    """Return how many of [n, w] are set, int64 [n]; a block at a time, since torch widens what it counts to int64."""
    return torch.stack([block.sum(dim=-1) for block in torch.split(mask, BLOCK, dim=-1)]).sum(dim=0)


class Moments(NamedTuple):
    """Of n rows over the whole vocabulary: maximum, log of the sum of exp(x - maximum), mean of (maximum - x)."""

    top: torch.Tensor
    log_total: torch.Tensor
    mean_gap: torch.Tensor | None


class VocabParallel:
    """An operator on this rank's columns; a subclass says how sums cross ranks (`total`).

    vocab: entries that take part; columns from there on are hidden, None hides nothing. summed: how many columns,
    over all ranks, the last call left unmasked, counted in what it summed. Not placed, it stands alone. stated: the
    dtype that the last call accumulated in, as xcfg.plugin.stated reads it.
    """

    def __init__(
        self,
        *,
        chunk_rows: int = DEFAULT_CHUNK_ROWS,
        accum_dtype: str = "float32",
        ignore_index: int | None = None,
    ) -> None:
        """Take the options of the backend; UsageError for values outside their domains.

        chunk_rows: rows worked on at a time. accum_dtype: float32 or float64, and never narrower than the logits.
        ignore_index: rows of this id have no value: NaN, which no comparison passes, and no gradient.
        """
        self.chunk_rows = positive("chunk_rows", chunk_rows)
        self.accum_dtype = accumulator(accum_dtype)
        self.ignore_index = ignore_id(ignore_index)
        self.vocab: int | None = None
        self.summed = 0
        self.stated: dict[str, Any] = {}
        self.start = 0
        self.ranks = Ranks()
        self.shards = Shards(((0, 0),), (0,))

    def place(self, group: Any, start: int) -> None:
        """Say where the shard lies: the ranks of the vocabulary, and the global id of the first local column."""
        self.ranks, self.start = Ranks(group), start

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Logits [N, V / ranks] floating, selected int64 [N] global ids -> [N] in the accumulator's dtype, nats.

        Equal on every rank. A row with a NaN, a +inf or nothing but -inf is NaN. UsageError for wrong dtypes, shapes
        or shards, IdentityError for an id outside the vocabulary. Differentiable in the logits: each rank's gradient
        is that of its own columns, for a loss that every rank computes alike.
        """
        return self.values(logits, selected, entropy=False).logprob

    def values(self, logits: torch.Tensor, selected: torch.Tensor, *, entropy: bool = True) -> Values:
        """Return log probability, log-sum-exp and entropy [N] each; all are differentiable."""
        from xcfg_ops_logp.sharded.autograd import Selected

        self.stated = {}
        check_form(logits, selected)
        found = Selected.apply(logits, selected, self, entropy)  # type: ignore[no-untyped-call]
        return Values(found[0], found[1], found[2] if entropy else None)

    def forward(
        self, logits: torch.Tensor, selected: torch.Tensor, *, entropy: bool
    ) -> tuple[Values, Moments, torch.Tensor | None]:
        """Return the values, the moments that a backward needs, and the rows that are ignored; no gradient."""
        width = logits.shape[1]
        self.shards = self.ranks.shards(self.start, width, logits.device)
        if self.vocab is not None and not 0 < self.vocab <= self.shards.total:
            raise UsageError(f"{self.vocab} entries are to take part; the shards hold {self.shards.total}")
        ignored = check(logits, selected, self.entries, ignore_index=self.ignore_index)
        ids = selected if ignored is None else selected.masked_fill(ignored, 0)
        seen = torch.zeros(width, dtype=torch.bool, device=logits.device)
        parts = []
        for start in range(0, len(logits), self.chunk_rows):
            rows = slice(start, start + self.chunk_rows)
            local = self.widened(logits[rows])
            self.stated = {"options": {"accum_dtype": str(local.dtype).removeprefix("torch.")}}
            seen |= local.amax(dim=0) != -torch.inf
            parts.append(self._chunk(local, ids[rows], entropy=entropy))
            del local  # or two chunks are held at a time
        if parts:
            self.summed = int(self.ranks.add(seen.sum()))
        empty = torch.empty(0, dtype=self.dtype(logits), device=logits.device)
        logprob, top, log_total, gap = (
            torch.cat([part[index] for part in parts]) if parts else empty for index in range(4)
        )
        void = ~top.isfinite()
        logsumexp = torch.where(void, torch.nan, top + log_total)
        entropies = torch.where(void, torch.nan, log_total + gap) if entropy else None
        logprob = torch.where(void if ignored is None else void | ignored, torch.nan, logprob)
        return Values(logprob, logsumexp, entropies), Moments(top, log_total, gap), ignored

    @property
    def entries(self) -> int:
        """Entries of the vocabulary that take part, over all ranks."""
        return self.vocab if self.vocab is not None else self.shards.total

    def dtype(self, logits: torch.Tensor) -> torch.dtype:
        """Return the dtype that `logits` are worked on in."""
        return torch.promote_types(self.accum_dtype, logits.dtype)

    def widened(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a copy of [n, w] in the accumulator's dtype, hidden columns at -inf."""
        copy = rows.to(dtype=self.dtype(rows), memory_format=torch.contiguous_format, copy=True)
        copy[:, max(0, self.entries - self.start) :] = -torch.inf
        return copy

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum of `terms` [n, w] over the columns of all ranks, [n]; may overwrite them."""
        raise NotImplementedError

    def moments(self, local: torch.Tensor, *, entropy: bool) -> Moments:
        """Return the moments of n rows from this rank's columns [n, w], which are overwritten."""
        top = self.top(local)
        local -= top[:, None]
        maxima = local == 0
        count = self.ranks.add(counted(maxima)).to(local.dtype)
        terms = local.exp() if entropy else local.exp_()
        gaps = local.neg_().mul_(terms).masked_fill_(terms == 0, 0) if entropy else None
        others = self.total(terms.masked_fill_(maxima, 0))
        mean = self.total(gaps) / (count + others) if gaps is not None else None
        return Moments(top, torch.log1p((count - 1) + others), mean)

    def top(self, local: torch.Tensor) -> torch.Tensor:
        """Return the maximum of each row over all ranks; +inf where it has a NaN, and never -0.

        A maximum across ranks may lose a NaN, an infinity it keeps. Of -0 and 0 a maximum is either.
        """
        top = local.amax(dim=-1)
        return self.ranks.largest(top.masked_fill_(top.isnan(), torch.inf)) + 0.0

    def picked(self, local: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Return the selected logit [n], never -0: its owner adds it, the others add 0, exact in every order."""
        inside, mine = self.owned(local, selected)
        return self.ranks.add(torch.where(inside, mine, torch.zeros_like(mine))) + 0.0

    def owned(self, local: torch.Tensor, selected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which ids lie in this shard, bool [n], and the entries of `local` at them; elsewhere any entry."""
        index = selected - self.start
        inside = (index >= 0) & (index < local.shape[1])
        return inside, local.gather(-1, index.clamp(0, local.shape[1] - 1)[:, None])[:, 0]

    def _chunk(
        self, local: torch.Tensor, selected: torch.Tensor, *, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logprob, top, log_total and mean gap of a few rows, each [n]."""
        picked = self.picked(local, selected)
        top, log_total, gap = self.moments(local, entropy=entropy)
        return (picked - top) - log_total, top, log_total, torch.zeros_like(top) if gap is None else gap

"""The backend `xcfg.ablation_logp`: a vocab-parallel log probability whose ranks are ranges of one tensor.

For a row with maximum m over all entries that take part, c of them equal to m and o = sum of exp(x - m) over the rest,

    log p(s) = (x[s] - m) - log1p((c - 1) + o)

Each range adds up its own entries in a fixed tree; what ranges hand each other, and in which order, is the options'.
With all of them at their defaults this is the reference's formula in the accumulator's dtype.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from xcfg.errors import UsageError

from xcfg_ops_logp.ablation import entropy
from xcfg_ops_logp.ablation.backward import ANALYTIC, noted, rounded, softmax_minus_onehot
from xcfg_ops_logp.ablation.descriptor import ACTS_WHERE, ORDERS, SHOWN_BY
from xcfg_ops_logp.ablation.partials import Partial, added, log_total, summed
from xcfg_ops_logp.contract.shards import ShardMap, megatron_shards, vllm_shards
from xcfg_ops_logp.inputs import accumulator, check, check_logits, ignore_id, positive

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class Ablation:
    """One selected log probability; see descriptor.OPTIONS.

    stated: of the last call, what its tensors were: a reader of knobs takes it for what ran; a backward of that call,
    and `entropy`, add what they did when they run. shown_by: option -> what alone can show it. transforms: the steps
    that were done to the logits. scored_ids: int64 [N], the ids whose log probability was returned.
    """

    shown_by = SHOWN_BY
    acts_where = ACTS_WHERE

    def __init__(self, **options: Any) -> None:
        """Take the options by name; UsageError for values outside their domains."""
        self.options: dict[str, Any] = {
            "vocab_padding_policy": "mask",
            "padded_vocab_size": 0,
            "vocab_shard_map": "whole",
            "reduce": "allgather_logits",
            "merge_order": ORDERS[0],
            "head_dtype": "as_is",
            "accum_dtype": "float32",
            "downcast_at": "never",
            "downcast_dtype": "bfloat16",
            "transform_chain": "none",
            "selected_gather": "local_gather",
            "shift_convention": "pre_shifted",
            "block_size": 0,
            "backward_impl": "autograd",
            "grad_downcast_at": "never",
            "entropy_reduce": "logits",
            "chunk_rows": 64,
            "ignore_index": None,
        }
        unknown = options.keys() - self.options.keys()
        if unknown:
            raise TypeError(f"no option {min(unknown)!r}; known: {', '.join(self.options)}")
        self.options |= options
        self.accum_dtype = accumulator(self.options["accum_dtype"])
        self.chunk_rows = positive("chunk_rows", self.options["chunk_rows"])
        self.ignore_index = ignore_id(self.options["ignore_index"])
        self.chain = steps(self.options["transform_chain"])
        self.stated: dict[str, Any] = {}
        self.ran: dict[str, Any] = {}
        self.scored_ids: torch.Tensor | None = None

    @property
    def transforms(self) -> tuple[str, ...]:
        """The steps as an engine states them."""
        return tuple(f"{name}:{value!r}" for name, value in self.chain)

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Return the log probabilities [N] in the accumulator's dtype, nats; see `values`."""
        return self.values(logits, selected)[0]

    def values(self, logits: torch.Tensor, selected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [N, V], selected int64 [N] -> log probability and log-sum-exp [N], differentiable.

        A row with a NaN, a +inf or nothing but -inf is NaN. UsageError for wrong dtypes and shapes, IdentityError for
        an id outside the vocabulary.
        """
        real = logits.shape[1] if logits.ndim == 2 else 0
        self.ran, self.stated = {}, {}
        internal = self.options["shift_convention"] == "internal"
        ids = selected.roll(-1) if internal else selected
        self.ran["downcast_at"] = "never"
        if not internal or bool((ids != selected).any()):  # a row alone has no other to shift to
            self.ran["shift_convention"] = "internal" if internal else "pre_shifted"
        ignored = check(logits, ids, real, ignore_index=self.ignore_index)
        self.scored_ids = ids
        safe = ids if ignored is None else ids.masked_fill(ignored, 0)
        columns = max(real, self.options["padded_vocab_size"])
        shards = self._shards(real, columns)
        parts = [self._chunk(logits[rows], safe[rows], shards, columns) for rows in self._rows(logits)]
        if not parts:
            return self._nothing(logits), self._nothing(logits)
        logprob, logsumexp = (torch.cat([part[index] for part in parts]) for index in (0, 1))
        if ignored is not None:
            logprob = logprob.masked_fill(ignored, torch.nan)
        self.stated = {
            "options": self.ran,
            "vocabulary": {"policy": self.ran["vocab_padding_policy"], "real": real, "padded": columns},
            "shards": [list(bounds) for bounds in shards],
        }
        return logprob, logsumexp

    def entropy(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [N, V] -> entropy [N] of the distribution that `values` scores, nats, in the accumulator's dtype.

        Differentiable. A row without a distribution is NaN. Adds `entropy_reduce` to what is stated of the last call.
        """
        check_logits(logits)
        columns = max(logits.shape[1], self.options["padded_vocab_size"])
        shards = self._shards(logits.shape[1], columns)
        parts = [self._entropy(logits[rows], shards, columns) for rows in self._rows(logits)]
        self.stated.setdefault("options", self.ran)
        return torch.cat(parts) if parts else self._nothing(logits)

    def _entropy(self, rows: torch.Tensor, shards: ShardMap, columns: int) -> torch.Tensor:
        wide = self._distribution(rows, columns)
        ranges = [bounds for bounds in shards if bounds[0] < bounds[1]]
        split = self.options["entropy_reduce"] == "partials" and len(ranges) > 1
        self.ran["entropy_reduce"] = "partials" if split else "logits"
        found = self._merged_entropy(wide, ranges) if split else entropy.whole(wide)
        void = ~wide.amax(dim=-1).isfinite()
        if self.options["downcast_at"] == "result":
            found = self._dropped(found, "result")
        return found.masked_fill(void, torch.nan)

    def _merged_entropy(self, wide: torch.Tensor, ranges: list[tuple[int, int]]) -> torch.Tensor:
        partials = self._partials(wide, tuple(ranges))
        top = self._agreed(wide)
        sums = [entropy.weighted(wide[:, start:stop], top) for start, stop in ranges]
        if self.options["downcast_at"] == "partials":
            sums = [self._dropped(item, "partials") for item in sums]
        return entropy.merged(partials, sums, self._merged(partials), self.options["merge_order"])

    def _shards(self, real: int, columns: int) -> ShardMap:
        """Return the ranges of the virtual ranks over all columns; UsageError where an engine would pad otherwise."""
        kind, *numbers = str(self.options["vocab_shard_map"]).split(":")
        if kind == "whole" or self.options["reduce"] == "allgather_logits":
            return ((0, columns),)
        ranks, *padding = map(int, numbers)
        if kind == "even":
            cuts = [rank * columns // ranks for rank in range(ranks + 1)]
            return tuple(pairwise(cuts))
        shards = (megatron_shards if kind == "megatron" else vllm_shards)(real, ranks, *padding)
        if shards[-1][1] < columns:
            raise UsageError(
                f"{self.options['vocab_shard_map']} splits {shards[-1][1]} columns, and there are {columns}",
                hint="Set padded_vocab_size to what that map pads to, or leave it 0.",
            )
        return tuple((min(start, columns), min(stop, columns)) for start, stop in shards)

    def _rows(self, logits: torch.Tensor) -> list[slice]:
        return [slice(start, start + self.chunk_rows) for start in range(0, len(logits), self.chunk_rows)]

    def _nothing(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the values of no rows, which have a gradient of no rows."""
        return logits[:, 0].to(torch.promote_types(self.accum_dtype, logits.dtype))

    def _chunk(
        self, rows: torch.Tensor, selected: torch.Tensor, shards: ShardMap, columns: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        place, note = self.options["grad_downcast_at"], self.ran
        if place == "dlogits":
            rounded(rows, self._narrowed, note)
        wide = self._distribution(rows, columns)
        values = partial(self._values, selected=selected, shards=shards, real=rows.shape[1])
        if self.options["backward_impl"] == ANALYTIC:
            rounding = self._narrowed if place == "softmax" else None
            logprob, logsumexp = softmax_minus_onehot(wide, selected, values, rounding, note)
        else:
            logprob, logsumexp = values(noted(wide, note))
        void = ~logsumexp.isfinite()
        if self.options["downcast_at"] == "result":
            logprob, logsumexp = self._dropped(logprob, "result"), self._dropped(logsumexp, "result")
        return logprob.masked_fill(void, torch.nan), logsumexp.masked_fill(void, torch.nan)

    def _values(
        self, wide: torch.Tensor, selected: torch.Tensor, shards: ShardMap, real: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        picked = self._picked(wide, selected, shards)
        partials = self._partials(wide, shards)
        whole = self._merged(partials)
        total = log_total(whole)
        self._note(wide, real, shards, partials)
        return (picked - whole.top) - total, whole.top + total

    def _partials(self, wide: torch.Tensor, shards: ShardMap) -> list[Partial]:
        top = self._agreed(wide)
        return [self._range(wide[:, start:stop], top) for start, stop in shards if start < stop]

    def _agreed(self, wide: torch.Tensor) -> torch.Tensor | None:
        """Return the maximum [n] that the ranks agree on first; None where each has its own."""
        return wide.amax(dim=-1) if self.options["reduce"] == "allreduce_partials" else None

    def _distribution(self, rows: torch.Tensor, columns: int) -> torch.Tensor:
        """Return the logits [n, columns] of what is scored: widened, padded, transformed, and masked where it is."""
        wide, real = self._widened(rows, columns), rows.shape[1]
        masked = self.options["vocab_padding_policy"] == "mask" or columns == real
        self.ran["vocab_padding_policy"] = "mask" if masked else "include"
        if masked and columns > real:
            wide = torch.cat((wide[:, :real], torch.full_like(wide[:, real:], -torch.inf)), dim=1)
        return wide

    def _widened(self, rows: torch.Tensor, columns: int) -> torch.Tensor:
        head = self.options["head_dtype"]
        source = rows if head == "as_is" else rows.to(DTYPES[head])
        rounded = torch.promote_types(rows.dtype, source.dtype) != source.dtype
        self.ran["head_dtype"] = str(source.dtype).removeprefix("torch.") if rounded else "as_is"
        if columns > rows.shape[1]:
            source = torch.nn.functional.pad(source, (0, columns - rows.shape[1]))
        wide = source.to(torch.promote_types(self.accum_dtype, rows.dtype))
        if self.options["downcast_at"] == "logits":
            wide = self._dropped(wide, "logits")
        for name, value in self.chain:
            wide = transformed(wide, name, value)
        return wide

    def _dropped(self, values: torch.Tensor, place: str) -> torch.Tensor:
        self.ran["downcast_at"] = place
        return self._narrowed(values)

    def _narrowed(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(DTYPES[self.options["downcast_dtype"]]).to(values.dtype)

    def _picked(self, wide: torch.Tensor, selected: torch.Tensor, shards: ShardMap) -> torch.Tensor:
        """Return the selected logit [n]: from its owner, or as the sum over ranks of what each holds, 0 elsewhere."""
        if self.options["selected_gather"] == "local_gather" or len(shards) == 1:
            self.ran["selected_gather"] = "local_gather"
            return wide.gather(-1, selected[:, None])[:, 0]
        self.ran["selected_gather"] = "masked_sum_allreduce"
        total = torch.zeros_like(wide[:, 0])
        for start, stop in shards:
            if start < stop:
                inside = (selected >= start) & (selected < stop)
                mine = wide[:, start:stop].gather(-1, (selected - start).clamp(0, stop - start - 1)[:, None])[:, 0]
                total = total + torch.where(inside, mine, torch.zeros_like(mine))
        return total

    def _range(self, local: torch.Tensor, top: torch.Tensor | None) -> Partial:
        """Return the partial of one virtual rank [n, w], relative to `top` where the ranks agreed on a maximum."""
        width = self.options["block_size"] or local.shape[1]
        blocks = [summed(block, top) for block in torch.split(local, width, dim=1)]
        found = blocks[0] if len(blocks) == 1 else added(blocks, ORDERS[0])
        if self.options["downcast_at"] == "partials":
            found = Partial(self._dropped(found.top, "partials"), found.ties, self._dropped(found.others, "partials"))
        return found

    def _merged(self, partials: list[Partial]) -> Partial:
        return partials[0] if len(partials) == 1 else added(partials, self.options["merge_order"])

    def _note(self, wide: torch.Tensor, real: int, shards: ShardMap, partials: list[Partial]) -> None:
        """Keep what this call did, as far as tensors and ranges show it; an option without effect is not what ran."""
        size, split = self.options["block_size"], len(partials) > 1
        widest = max(stop - start for start, stop in shards)
        self.ran |= {
            "accum_dtype": str(partials[0].others.dtype).removeprefix("torch."),
            "padded_vocab_size": wide.shape[1] if wide.shape[1] > real else 0,
            "vocab_shard_map": self.options["vocab_shard_map"] if split else "whole",
            "reduce": self.options["reduce"] if split else "allgather_logits",
            "merge_order": self.options["merge_order"] if split else ORDERS[0],
            "block_size": size if size < widest else 0,
            "transform_chain": self.options["transform_chain"] if self.chain else "none",
        }


def steps(chain: str) -> tuple[tuple[str, float], ...]:
    """Return the steps of an option, in order; UsageError for one that is not known or not positive."""
    found: list[tuple[str, float]] = []
    for item in () if chain == "none" else chain.split(","):
        name, _, text = item.partition(":")
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if name not in ("temperature", "soft_cap", "logit_scale") or not value > 0:
            raise UsageError(f"the step {item!r}", hint="Known: temperature:T, soft_cap:C, logit_scale:S, all above 0.")
        found.append((name, value))
    return tuple(found)


def transformed(logits: torch.Tensor, name: str, value: float) -> torch.Tensor:
    """Return [n, w] after one step."""
    if name == "temperature":
        return logits / value
    return logits * value if name == "logit_scale" else torch.tanh(logits / value) * value

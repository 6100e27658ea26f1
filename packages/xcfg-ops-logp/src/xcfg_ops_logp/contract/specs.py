"""The ten parts of LogProbContract. Tiers as in the ablation axes; what departs from them says why."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from xcfg.binding import DTYPE, NCCL_ALGO, NCCL_PROTO, EndToEnd, Global, Spelling, Violation
from xcfg.schema._base import Record
from xcfg.schema.names import Tier

from xcfg_ops_logp.contract.shards import ShardMap, tiled

RowsOnly = EndToEnd(Tier.RECORDED)
"""Reduction order and downcasts bind rows and swaps; end to end they are what is measured."""
Recorded: TypeAlias = Annotated[str | None, Tier.RECORDED]
Count: TypeAlias = Annotated[int | None, Tier.RECORDED]


class _Chain(Spelling):
    """A transform chain: numbers are brought to one spelling; what changes no logit (`temperature:1`) is left out."""

    NEUTRAL = frozenset(
        {("temperature", 1.0), ("top_p", 1.0), ("top_k", 0.0), ("top_k", -1.0), ("soft_cap", 0.0), ("logit_scale", 1.0)}
    )

    def __call__(self, value: object) -> object:
        """Return the steps as (name, number or text), in order."""
        if not isinstance(value, (list, tuple)):
            return value
        return tuple(step for step in map(self._step, value) if step not in self.NEUTRAL)

    @staticmethod
    def _step(item: object) -> tuple[str, float | str]:
        name, _, text = str(item).strip().lower().partition(":")
        try:
            return name.strip(), float(text)
        except ValueError:
            return name.strip(), text.strip()


CHAIN = _Chain({})


class VocabSpec(Record, frozen=True):
    """Which entries stand in the denominator.

    org_vocab_size: ids that mean something. padded_vocab_size: columns of the logits, over all ranks. pad_row_init:
    how the head's rows beyond the vocabulary were made (none, zero, nonzero; see head_rows). pad_row_norm: the
    largest norm among them. vocab_padding_policy: whether padded columns enter the log-sum-exp; `mask` where there
    are none.
    """

    org_vocab_size: Annotated[int | None, Tier.IDENTICAL] = None
    padded_vocab_size: Count = None
    num_pad_rows: Count = None
    pad_row_init: Recorded = None
    pad_row_norm: Annotated[float | None, Tier.RECORDED] = None
    vocab_padding_policy: Annotated[Literal["include", "mask"] | None, Tier.SEMANTIC] = None


class ShardingSpec(Record, frozen=True):
    """Who owns which id.

    vocab_shard_map: per rank (vocab_start, vocab_end) over the real ids. The domain that it tiles must be the same,
    the boundaries are recorded. padded_shard_map: per rank what the engine allocated, padding included.
    """

    vocab_shard_map: Annotated[ShardMap | None, Tier.IDENTICAL, Global(tiled)] = None
    padded_shard_map: Annotated[ShardMap | None, Tier.RECORDED] = None


class ReductionSpec(Record, frozen=True):
    """How partial results become one.

    reduce: none (one rank), allreduce_partials, allgather_partials_fixed_merge, allgather_logits. merge_order: none,
    nccl_algo, global_vocab_shard_index, or the order of the backend by name. acc_dtype: of the merge.
    """

    reduce: Annotated[str | None, Tier.SEMANTIC, RowsOnly] = None
    merge_order: Annotated[str | None, Tier.SEMANTIC, RowsOnly] = None
    acc_dtype: Annotated[str | None, Tier.SEMANTIC, DTYPE] = None
    collective: Recorded = None
    engine: Recorded = None
    NCCL_ALGO: Annotated[str | None, Tier.RECORDED, NCCL_ALGO] = None
    NCCL_PROTO: Annotated[str | None, Tier.RECORDED, NCCL_PROTO] = None
    world_topology: Recorded = None


class PrecisionSpec(Record, frozen=True):
    """model_dtype: of the decoder. head_dtype: of the logits. accum_dtype: of the log-sum-exp.

    downcast_at: where digits are dropped: never, logits, partials, result. The model's dtype binds rows only: two
    engines in two dtypes are a pair that production has, and is judged by the coarser one.
    """

    model_dtype: Annotated[str | None, Tier.IDENTICAL, DTYPE, RowsOnly] = None
    head_dtype: Annotated[str | None, Tier.IDENTICAL, DTYPE] = None
    accum_dtype: Annotated[str | None, Tier.SEMANTIC, DTYPE] = None
    downcast_at: Annotated[str | None, Tier.SEMANTIC, RowsOnly] = None


class TransformSpec(Record, frozen=True):
    """What was done to the logits, in order; another order is another distribution, never drift.

    transform_chain: e.g. ("temperature:0.7", "top_p:0.9"); empty for raw logits. soft_cap: 0 for none.
    logit_scale: 1 for none.
    """

    transform_chain: Annotated[tuple[str, ...] | None, Tier.SEMANTIC, CHAIN, Violation()] = None
    temperature_applied: Annotated[float | None, Tier.SEMANTIC, Violation()] = None
    logprobs_mode: Annotated[str | None, Tier.SEMANTIC, Violation()] = None
    soft_cap: Annotated[float | None, Tier.SEMANTIC, Violation()] = None
    logit_scale: Annotated[float | None, Tier.SEMANTIC, Violation()] = None


class GatherSpec(Record, frozen=True):
    """How the selected logit is found.

    selected_gather: masked_sum_allreduce, local_gather. single_owner: every id is gathered from exactly one place.
    ignore_index: the id that is skipped, or "none". active_mask: which rows count, "all" or a digest.
    shift_convention: `pre_shifted`, row n scores selected[n]; `internal`, the operator shifts by one itself.
    """

    selected_gather: Recorded = None
    single_owner: Annotated[bool | None, Tier.SEMANTIC] = None
    ignore_index: Annotated[int | Literal["none"] | None, Tier.SEMANTIC] = None
    active_mask: Annotated[str | None, Tier.SEMANTIC, Violation()] = None
    shift_convention: Annotated[Literal["pre_shifted", "internal"] | None, Tier.SEMANTIC, Violation()] = None


class MaterializationSpec(Record, frozen=True):
    """Which rows go through the head, and how.

    logical_rows: rows of the problem, the same on both sides. materialization: full_prefill, chunked,
    last_token_only. physical_rows: M of the head's matrix product; padded_batch_size: of a step, padding included.
    """

    logical_rows: Annotated[int | None, Tier.IDENTICAL] = None
    materialization: Recorded = None
    head_gemm_kernel: Recorded = None
    physical_rows: Count = None
    padded_batch_size: Count = None


class FusionSpec(Record, frozen=True):
    """fusion_impl: none, native, te, chunked_linear_ce. block_size: columns per step; chunk_size: rows per step."""

    fusion_impl: Recorded = None
    block_size: Count = None
    chunk_size: Count = None


class BackwardSpec(Record, frozen=True):
    """State that only training has; a score without a backward pass states "none".

    grad_downcast_at: where digits of dlogits are dropped. entropy_reduce: how the entropy is reduced over shards.
    """

    backward_impl: Recorded = None
    grad_downcast_at: Annotated[str | None, Tier.SEMANTIC, RowsOnly] = None
    entropy_reduce: Annotated[str | None, Tier.SEMANTIC] = None


class BackendCapability(Record, frozen=True):
    """What ran, and what it can do; recorded, never forced equal.

    impl: mcore_unfused, mcore_native_fused, mcore_te_fused, slime_vocab_parallel, vllm_all_gather, or a backend's
    own. tp_size is IDENTICAL in the axes and recorded here: sides with different sizes are what is compared, and what
    must be equal of a split is the vocabulary that the shard map tiles.
    """

    impl: Recorded = None
    version: Recorded = None
    tp_size: Count = None
    requested_backend: Recorded = None
    actual_backend: Recorded = None
    fallback_reason: Recorded = None
    properties: Annotated[tuple[str, ...] | None, Tier.RECORDED] = None


class LogProbContract(Record, frozen=True):
    """One side of a selected log probability."""

    vocab: VocabSpec = VocabSpec()
    sharding: ShardingSpec = ShardingSpec()
    reduction: ReductionSpec = ReductionSpec()
    precision: PrecisionSpec = PrecisionSpec()
    transform: TransformSpec = TransformSpec()
    gather: GatherSpec = GatherSpec()
    materialization: MaterializationSpec = MaterializationSpec()
    fusion: FusionSpec = FusionSpec()
    backward: BackwardSpec = BackwardSpec()
    capability: BackendCapability = BackendCapability()

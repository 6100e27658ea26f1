"""Contracts of this package's own backends."""

from __future__ import annotations

from xcfg_ops_logp.contract.specs import (
    BackendCapability,
    BackwardSpec,
    FusionSpec,
    GatherSpec,
    LogProbContract,
    MaterializationSpec,
    PrecisionSpec,
    ReductionSpec,
    ShardingSpec,
    TransformSpec,
    VocabSpec,
)


def reference_contract(*, vocab_size: int, head_dtype: str, rows: int) -> LogProbContract:
    """Return the contract that the reference backend fulfils for raw logits [rows, vocab_size] in `head_dtype`."""
    return LogProbContract(
        vocab=VocabSpec(
            org_vocab_size=vocab_size,
            padded_vocab_size=vocab_size,
            num_pad_rows=0,
            pad_row_init="none",
            pad_row_norm=0.0,
            vocab_padding_policy="mask",
        ),
        sharding=ShardingSpec(vocab_shard_map=((0, vocab_size),), padded_shard_map=((0, vocab_size),)),
        reduction=ReductionSpec(reduce="none", merge_order="none", acc_dtype="float64"),
        precision=PrecisionSpec(
            model_dtype=head_dtype, head_dtype=head_dtype, accum_dtype="float64", downcast_at="never"
        ),
        transform=TransformSpec(
            transform_chain=(), temperature_applied=1.0, logprobs_mode="raw_logprobs", soft_cap=0.0, logit_scale=1.0
        ),
        gather=GatherSpec(
            selected_gather="local_gather",
            single_owner=True,
            ignore_index="none",
            active_mask="all",
            shift_convention="pre_shifted",
        ),
        materialization=MaterializationSpec(logical_rows=rows, physical_rows=rows),
        fusion=FusionSpec(fusion_impl="none"),
        backward=BackwardSpec(backward_impl="none", grad_downcast_at="none", entropy_reduce="none"),
        capability=BackendCapability(
            tp_size=1, actual_backend="xcfg.reference_logp", properties=("run-to-run", "batch-invariant")
        ),
    )

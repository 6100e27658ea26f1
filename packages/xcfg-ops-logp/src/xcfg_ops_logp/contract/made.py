"""Contracts of this package's own backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xcfg_ops_logp.contract.shards import real_shards
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


def ablation_contract(
    stated: Mapping[str, Any], *, transforms: Sequence[str], logits_dtype: str, rows: int
) -> LogProbContract:
    """Return the contract that `xcfg.ablation_logp` fulfilled in a call that was `stated`.

    stated: of ablation.operator.Ablation. transforms: the steps that it declares. logits_dtype: of what it was handed.
    rows: of the problem. Options that nothing showed, such as those of a backward, are "none".
    """
    ran, vocabulary = stated["options"], stated["vocabulary"]
    shards = tuple((int(start), int(stop)) for start, stop in stated["shards"])
    real, padded = int(vocabulary["real"]), int(vocabulary["padded"])
    steps = {name: float(value) for name, _, value in (item.partition(":") for item in transforms)}
    alone = len(shards) == 1
    head = logits_dtype if ran["head_dtype"] == "as_is" else ran["head_dtype"]
    return LogProbContract(
        vocab=VocabSpec(
            org_vocab_size=real,
            padded_vocab_size=padded,
            num_pad_rows=padded - real,
            vocab_padding_policy=vocabulary["policy"],
        ),
        sharding=ShardingSpec(vocab_shard_map=real_shards(shards, real), padded_shard_map=shards),
        reduction=ReductionSpec(
            reduce="none" if alone else ran["reduce"],
            merge_order="none" if alone else ran["merge_order"],
            acc_dtype=ran["accum_dtype"],
        ),
        precision=PrecisionSpec(
            model_dtype=logits_dtype,
            head_dtype=head,
            accum_dtype=ran["accum_dtype"],
            downcast_at=ran["downcast_at"],
        ),
        transform=TransformSpec(
            transform_chain=tuple(transforms),
            temperature_applied=steps.get("temperature", 1.0),
            logprobs_mode="processed_logprobs" if transforms else "raw_logprobs",
            soft_cap=steps.get("soft_cap", 0.0),
            logit_scale=steps.get("logit_scale", 1.0),
        ),
        gather=GatherSpec(
            selected_gather=ran["selected_gather"],
            single_owner=True,
            ignore_index="none",
            active_mask="all",
            shift_convention=ran.get("shift_convention"),
        ),
        materialization=MaterializationSpec(logical_rows=rows, physical_rows=rows),
        fusion=FusionSpec(fusion_impl="none", block_size=ran["block_size"]),
        backward=BackwardSpec(
            backward_impl=ran.get("backward_impl", "none"),
            grad_downcast_at=ran.get("grad_downcast_at", "none"),
            entropy_reduce=ran.get("entropy_reduce", "none"),
        ),
        capability=BackendCapability(tp_size=len(shards), actual_backend="xcfg.ablation_logp"),
    )

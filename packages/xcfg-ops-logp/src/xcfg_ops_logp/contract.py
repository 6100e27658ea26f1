"""LogProbContract: what a `selected_logprob` over local, unsharded logits must agree on between two sides.

Field names are the recorded names of the ablation axes. None means that the side does not know its value, which
fails closed for IDENTICAL and SEMANTIC fields (see compare.py).
"""

from __future__ import annotations

from typing import Annotated, Literal

from xcfg.schema._base import Record
from xcfg.schema.names import Tier

from xcfg_ops_logp.compare import EndToEnd, Spelling

DTYPE = Spelling(
    {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32",
     "fp64": "float64", "double": "float64"},
    prefixes=("torch.",),
)  # fmt: skip


class VocabSpec(Record, frozen=True):
    """Which entries stand in the denominator.

    org_vocab_size: ids that mean something. padded_vocab_size: columns of the logits. pad_row_init: how the
    head's rows beyond the vocabulary were made (zero, random, copied). vocab_padding_policy: whether padded
    columns enter the log-sum-exp; `mask` where there are none.
    """

    org_vocab_size: Annotated[int | None, Tier.IDENTICAL] = None
    padded_vocab_size: Annotated[int | None, Tier.RECORDED] = None
    num_pad_rows: Annotated[int | None, Tier.RECORDED] = None
    pad_row_init: Annotated[str | None, Tier.RECORDED] = None
    vocab_padding_policy: Annotated[Literal["include", "mask"] | None, Tier.SEMANTIC] = None


class PrecisionSpec(Record, frozen=True):
    """head_dtype: of the logits. accum_dtype: of the log-sum-exp. downcast_at: where digits are dropped.

    downcast_at: never | logits | partials | result.
    """

    head_dtype: Annotated[str | None, Tier.IDENTICAL, DTYPE] = None
    accum_dtype: Annotated[str | None, Tier.SEMANTIC, DTYPE] = None
    downcast_at: Annotated[str | None, Tier.SEMANTIC, EndToEnd(Tier.RECORDED)] = None


class TransformSpec(Record, frozen=True):
    """What was done to the logits, in order; another order is another distribution, never drift.

    transform_chain: e.g. ("temperature:0.7", "top_p:0.9"); empty for raw logits. soft_cap: 0 for none.
    logit_scale: 1 for none.
    """

    transform_chain: Annotated[tuple[str, ...] | None, Tier.SEMANTIC] = None
    temperature_applied: Annotated[float | None, Tier.SEMANTIC] = None
    logprobs_mode: Annotated[str | None, Tier.SEMANTIC] = None
    soft_cap: Annotated[float | None, Tier.SEMANTIC] = None
    logit_scale: Annotated[float | None, Tier.SEMANTIC] = None


class GatherSpec(Record, frozen=True):
    """How the selected logit is found.

    shift_convention: `pre_shifted`, row n scores selected[n]; `internal`, the operator shifts by one itself.
    single_owner: every id is gathered from exactly one place. ignore_index: the id that is skipped, or "none".
    """

    selected_gather: Annotated[str | None, Tier.RECORDED] = None
    single_owner: Annotated[bool | None, Tier.SEMANTIC] = None
    ignore_index: Annotated[int | Literal["none"] | None, Tier.SEMANTIC] = None
    shift_convention: Annotated[Literal["pre_shifted", "internal"] | None, Tier.SEMANTIC] = None


class LogProbContract(Record, frozen=True):
    """One side of a selected log probability over unsharded logits."""

    vocab: VocabSpec = VocabSpec()
    precision: PrecisionSpec = PrecisionSpec()
    transform: TransformSpec = TransformSpec()
    gather: GatherSpec = GatherSpec()


def reference_contract(*, vocab_size: int, head_dtype: str) -> LogProbContract:
    """Return the contract that the reference backend fulfils for raw logits [N, vocab_size] in `head_dtype`."""
    return LogProbContract(
        vocab=VocabSpec(
            org_vocab_size=vocab_size,
            padded_vocab_size=vocab_size,
            num_pad_rows=0,
            vocab_padding_policy="mask",
        ),
        precision=PrecisionSpec(head_dtype=head_dtype, accum_dtype="float64", downcast_at="never"),
        transform=TransformSpec(
            transform_chain=(), temperature_applied=1.0, logprobs_mode="raw_logprobs", soft_cap=0.0, logit_scale=1.0
        ),
        gather=GatherSpec(
            selected_gather="local_gather", single_owner=True, ignore_index="none", shift_convention="pre_shifted"
        ),
    )

"""What `xcfg.ablation_logp` declares. No heavy import.

Names are those of the ablation axes, so that `logprob.NAME` and the contract's field of that name are the same thing.
"""

from __future__ import annotations

from xcfg.schema._base import Value
from xcfg.schema.knobs import Choice, Domain, IntRange, Text
from xcfg.schema.operators import OperatorBackendDescriptor, OptionDefinition

from xcfg_ops_logp.torch_backends import ACCUMULATOR, CHUNK, IGNORE

NUMBER = r"(?=[0-9.]*[1-9])[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?"
"""A decimal number above 0 that float64 holds."""
STEP = rf"(temperature|soft_cap|logit_scale):{NUMBER}"
REDUCE = ("allreduce_partials", "allgather_partials_fixed_merge", "allgather_logits")
ORDERS = ("global_vocab_shard_index", "reverse_vocab_shard_index", "pairwise_tree")
DOWNCAST = ("never", "logits", "partials", "result")
BACKWARD = ("backward_impl", "grad_downcast_at")
SHOWN_BY = {**dict.fromkeys(BACKWARD, "backward"), "entropy_reduce": "entropy"}
"""Option -> what alone can show it: a backward pass, or the method `entropy`; no log probability depends on it."""
SPLIT = "it acts where vocab_shard_map splits the vocabulary and reduce is not allgather_logits"
ACTS_WHERE = {
    "vocab_padding_policy": "include acts where padded_vocab_size is above the vocabulary",
    "padded_vocab_size": "it acts above the number of columns that are there",
    "vocab_shard_map": SPLIT,
    "reduce": SPLIT,
    "merge_order": SPLIT,
    "selected_gather": SPLIT,
    "entropy_reduce": SPLIT,
    "head_dtype": "it acts where it is narrower than the logits",
    "accum_dtype": "it acts where the logits are not wider",
    "block_size": "it acts below the width of a shard",
    "grad_downcast_at": "softmax acts where backward_impl is softmax_minus_onehot",
}
"""Option -> what it needs beside it, said where its value did not run."""


def option(name: str, domain: Domain, default: Value, summary: str) -> OptionDefinition:
    """Return one option of a backend whose every choice is one."""
    return OptionDefinition(name=name, domain=domain, default=default, summary=summary)


OPTIONS = (
    option("vocab_padding_policy", Choice(values=("mask", "include")), "mask", "whether padded columns enter the sum"),
    option(
        "padded_vocab_size",
        IntRange(minimum=0),
        0,
        "columns of 0, as those of zero rows of a head are, are added up to this size; 0 adds none",
    ),
    option(
        "vocab_shard_map",
        Text(pattern=r"whole|even:[1-9][0-9]*|(megatron|vllm):[1-9][0-9]*(:[1-9][0-9]*)?"),
        "whole",
        "who owns which id: whole, even:RANKS, or an engine's map, megatron:RANKS[:DIVISOR], vllm:RANKS[:MULTIPLE]",
    ),
    option("reduce", Choice(values=REDUCE), "allgather_logits", "what the virtual ranks hand each other"),
    option("merge_order", Choice(values=ORDERS), ORDERS[0], "in which order partial sums of the ranks are added"),
    option(
        "head_dtype",
        Choice(values=("as_is", "bfloat16", "float16", "float32")),
        "as_is",
        "dtype that the logits are rounded to when they come out of the head",
    ),
    ACCUMULATOR,
    option("downcast_at", Choice(values=DOWNCAST), "never", "where digits are dropped: to downcast_dtype and back"),
    option("downcast_dtype", Choice(values=("bfloat16", "float16")), "bfloat16", "the dtype of downcast_at"),
    option(
        "transform_chain",
        Text(pattern=rf"none|{STEP}(,{STEP})*"),
        "none",
        "none, or ordered steps above 0, such as temperature:0.7,soft_cap:30; refused where one side alone has them",
    ),
    option(
        "selected_gather",
        Choice(values=("local_gather", "masked_sum_allreduce")),
        "local_gather",
        "how the selected logit is found",
    ),
    option(
        "shift_convention",
        Choice(values=("pre_shifted", "internal")),
        "pre_shifted",
        "row n scores selected[n], or selected[n + 1], which is another token",
    ),
    option("block_size", IntRange(minimum=0), 0, "columns in one step of an online softmax; 0 takes a shard at once"),
    option(
        "backward_impl",
        Choice(values=("autograd", "softmax_minus_onehot")),
        "autograd",
        "gradient through the forward's graph, or analytic, from logits and log-sum-exp that were saved",
    ),
    option(
        "grad_downcast_at",
        Choice(values=("never", "softmax", "dlogits")),
        "never",
        "where digits of the gradient are dropped, to downcast_dtype: in the analytic softmax, or in the result",
    ),
    option(
        "entropy_reduce",
        Choice(values=("logits", "partials")),
        "logits",
        "the entropy from the whole row, or merged in merge_order from sums of exp(x - max) x of the virtual ranks",
    ),
    CHUNK,
    IGNORE,
)

ABLATION = OperatorBackendDescriptor(
    operation="selected_logprob",
    backend_id="xcfg.ablation_logp",
    summary="one factor at a time: padding, shards, merge, precision, transforms, gather, tiling, gradient are options",
    factory="xcfg_ops_logp.ablation.operator:Ablation",
    shapes="logits [N, V] over the whole vocabulary, selected [N]; shards are virtual ranks of one process",
    properties=("run-to-run", "batch-invariant"),
    options=OPTIONS,
    runtimes=("torch", "vllm", "megatron"),  # they read what an operator states: else a temperature is taken for drift
)

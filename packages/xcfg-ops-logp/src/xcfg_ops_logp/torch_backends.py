"""The backends in plain torch and torch.distributed, and the float32 reference. No heavy import.

Declared is what holds at every tensor-parallel size: the library's all-reduce may add ranks in another order for a row
at another place of its buffer, so that nothing merged by it is batch-invariant.
"""

from __future__ import annotations

from xcfg.schema.knobs import Choice, IntRange
from xcfg.schema.operators import OperatorBackendDescriptor, OptionDefinition

IGNORE = OptionDefinition(
    name="ignore_index",
    domain=IntRange(minimum=-(2**31), maximum=2**31 - 1),
    summary="rows of this id have no log probability (NaN) and no gradient; without it every such id is refused",
)
CHUNK = OptionDefinition(
    name="chunk_rows",
    domain=IntRange(minimum=1),
    default=64,
    summary="rows worked on at a time; bounds memory",
)
ACCUMULATOR = OptionDefinition(
    name="accum_dtype",
    domain=Choice(values=("float32", "float64")),
    default="float32",
    summary="dtype of sums and result; float64 logits are always worked on in float64",
)
TILE = OptionDefinition(
    name="tile",
    domain=IntRange(minimum=1),
    default=1024,
    summary="entries of the vocabulary in one partial; another tile is another order of the sum",
)
INVARIANT = ("run-to-run", "batch-invariant", "tp-invariant")


def _sharded(
    backend: str,
    factory: str,
    summary: str,
    properties: tuple[str, ...],
    collectives: tuple[str, ...],
    options: tuple[OptionDefinition, ...] = (CHUNK, ACCUMULATOR, IGNORE),
    aliases: tuple[str, ...] = (),
) -> OperatorBackendDescriptor:
    return OperatorBackendDescriptor(
        operation="selected_logprob",
        backend_id=backend,
        summary=summary,
        factory=f"xcfg_ops_logp.sharded.{factory}",
        shapes="logits [N, V / ranks], this rank's columns, or all of them; selected [N], global ids",
        properties=properties,
        collectives=collectives,
        options=options,
        aliases=aliases,
    )


TREE = _sharded(
    "xcfg.tp_tree_logp",
    "tree:Tree",
    "binary tree over the global vocabulary index: equal bits at every tensor-parallel size",
    (*INVARIANT, "bitwise-equal-to:xcfg.allgather_logits_logp"),
    ("all_gather", "all_reduce"),
)
GATHERED = _sharded(
    "xcfg.allgather_logits_logp",
    "gathered:AllGatherLogits",
    "logits of all ranks gathered, then the tree on every rank",
    (*INVARIANT, "bitwise-equal-to:xcfg.tp_tree_logp"),
    ("all_gather", "all_reduce"),
)
PARTIALS = _sharded(
    "xcfg.allgather_partials_logp",
    "partials:AllGatherPartials",
    "maximum, count and sum of each global tile gathered, merged from the first tile to the last",
    ("run-to-run", "batch-invariant"),
    ("all_gather", "all_reduce"),
    (TILE, CHUNK, ACCUMULATOR, IGNORE),
)
REDUCED = _sharded(
    "xcfg.allreduce_partials_logp",
    "partials:AllReducePartials",
    "maximum, sum of exponentials and selected logit of each shard, all-reduced",
    ("run-to-run",),
    ("all_gather", "all_reduce"),
)
FIXED_POINT = _sharded(
    "xcfg.fixed_point_logp",
    "fixed_point:FixedPoint",
    "order-free oracle: global maximum, then an int64 sum of exponentials with 44 binary places",
    INVARIANT,
    ("all_gather", "all_reduce"),
    (CHUNK, IGNORE),
)
SLIME = _sharded(
    "xcfg.slime_vocab_parallel_logp",
    "slime:Slime",
    "slime's formula: maximum all-reduced, then the shifted selected logit and torch's sum in one all-reduce",
    ("run-to-run",),
    ("all_gather", "all_reduce"),
    aliases=("slime_vocab_parallel",),
)
REFERENCE_FLOAT32 = OperatorBackendDescriptor(
    operation="selected_logprob",
    backend_id="xcfg.reference_logp_float32",
    summary="the reference's arithmetic in float32, on the same inputs as the reference",
    factory="xcfg_ops_logp.reference:build_float32",
    dtypes=("bfloat16", "float16", "float32"),
    shapes="logits [N, V] over the whole vocabulary, selected [N]; any N >= 0 and V >= 1",
    properties=("run-to-run", "batch-invariant"),
    options=(CHUNK, IGNORE),
)

BACKENDS = (REFERENCE_FLOAT32, TREE, GATHERED, PARTIALS, REDUCED, FIXED_POINT, SLIME)

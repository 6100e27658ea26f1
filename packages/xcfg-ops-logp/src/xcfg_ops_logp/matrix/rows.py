"""The rows of the matrix `logp`, as data. No heavy import; the manifest is generated from this."""

from __future__ import annotations

from xcfg.plugin import DebugMatrix
from xcfg.schema.knobs import Text
from xcfg.schema.matrix import MatrixRowDefinition
from xcfg.schema.operators import OperatorBackendDescriptor, OptionDefinition

MODULE = "logp"
EDGES = (("training", "rollout_prefill"), ("rollout_prefill", "rollout_decode"))
WHOLE = "the vocabulary in one range"

TABLE = (
    MatrixRowDefinition(
        row="L1",
        role="gate",
        summary="both ends sum over the same ids of one vocabulary, each of them owned by one rank",
        probe="vocabulary_ownership",
    ),
    MatrixRowDefinition(
        row="L2",
        role="gate",
        summary="both ends score the frozen selected ids under the frozen active mask",
        probe="selected_tokens",
    ),
    MatrixRowDefinition(
        row="L0",
        role="baseline",
        summary="a second call on the captured logits gives what the worker computed, and that is near the reference",
        probe="replay",
        factor="none",
        baseline="the value that the worker computed",
    ),
    MatrixRowDefinition(
        row="LC0",
        role="control",
        summary="the same rows alone, and in other batches and another order",
        probe="batch_invariant_row_replay",
        factor="how many rows are handed over together",
        baseline="L0 of the same phase",
    ),
    MatrixRowDefinition(
        row="L3",
        role="row",
        summary="the log-sum-exp in eight tiles, merged from the first to the last",
        probe="lse_tile",
        factor="block_size",
        baseline=WHOLE,
    ),
    MatrixRowDefinition(
        row="L3",
        role="row",
        summary="partial sums of eight ranges added from the last to the first",
        probe="merge_order",
        factor="merge_order",
        baseline="the same eight ranges added from the first to the last",
    ),
    MatrixRowDefinition(
        row="L3",
        role="probe",
        summary="the log-sum-exp in 128 tiles, merged from the first to the last",
        probe="lse_tile_128",
        factor="block_size",
        baseline=WHOLE,
        tier="secondary",
    ),
    MatrixRowDefinition(
        row="L3",
        role="probe",
        summary="partial sums of eight ranges added in pairs",
        probe="merge_tree",
        factor="merge_order",
        baseline="the same eight ranges added from the first to the last",
        tier="secondary",
    ),
    MatrixRowDefinition(
        row="L3",
        role="probe",
        summary="shards that agree on a maximum first, against shards that each have their own",
        probe="reduction_topology",
        factor="reduce",
        baseline="the same eight ranges, each relative to its own maximum",
        tier="all",
    ),
)

NOTE = """figures are nats, or counts: `compared` values, and of them those that are `unequal` in any bit.
  out, lse, dlogits: the largest movement of log probability, log-sum-exp and gradient that the factor makes there.
  selected_max_abs: the largest gap of the edge with the factor on that end; _without: with it on neither.
  mismatch_kl: mean(-d) of that gap d; mismatch_k3_kl: mean(exp d - 1 - d).
  reference_max_abs: of the backend from xcfg.reference_logp, on the same logits.
  A row passes while what it moves stays within the contract's threshold, however far the edge itself drifts. Drift
  that no row makes comes with the logits, from before the vocabulary."""
"""Printed below the rows."""

MATRIX = DebugMatrix(
    module=MODULE,
    summary="Selected log probability: vocabulary, selected tokens, tile and merge order, on captured logits.",
    factory="xcfg_ops_logp.matrix.run:run",
    rows=("L0", "L1", "L2", "L3", "LC0"),
    table=TABLE,
    note=NOTE,
)
RANGES: dict[str, object] = {"vocab_shard_map": "even:8", "reduce": "allgather_partials_fixed_merge"}
TILES = {"lse_tile": 8, "lse_tile_128": 128}
CHANGES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "merge_order": (RANGES, {"merge_order": "reverse_vocab_shard_index"}),
    "merge_tree": (RANGES, {"merge_order": "pairwise_tree"}),
    "reduction_topology": (RANGES, {"reduce": "allreduce_partials"}),
}


def changed(probe: str, width: int) -> tuple[dict[str, object], dict[str, object]] | None:
    """Return (options of `xcfg.ablation_logp` on both ends, the one option that differs); None for no such probe.

    width: of the vocabulary, which a tile is a part of.
    """
    if probe in TILES:
        return {}, {"block_size": -(-width // TILES[probe])}
    return CHANGES.get(probe)


CAPTURE = OperatorBackendDescriptor(
    operation="selected_logprob",
    backend_id="xcfg.capture_logp",
    summary="keeps an engine's logits for a debug matrix; returns row numbers, which are no log probabilities",
    factory="xcfg_ops_logp.matrix.capture:Capture",
    shapes="logits [N, V / ranks], this rank's columns, or all of them; selected [N], global ids",
    collectives=("all_gather",),
    properties=(),
    options=tuple(
        OptionDefinition(name=name, domain=Text(), summary=summary)
        for name, summary in (
            ("folder", "an existing folder for the logits"),
            ("factory", "module:attr of the backend whose values are kept"),
            ("options", "its options, as JSON"),
        )
    ),
    diagnostic_only=True,
)

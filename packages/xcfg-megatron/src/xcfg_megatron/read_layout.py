"""Readers of what a request and the placement decide: parallelism, batches, temperature, vocabulary."""

from __future__ import annotations

import torch.distributed as dist
from xcfg.plugin.readback import Reading, execution, state
from xcfg.schema._base import Value
from xcfg.schema.names import Exercised, Lifecycle

from xcfg_megatron import switches
from xcfg_megatron.engine import Engine
from xcfg_megatron.readers import Layout, Reader, ran


def _tensor_parallel(engine: Engine, layout: Layout, requested: Value) -> Reading:
    group = engine.ranks.tensor_group
    size = dist.get_world_size(group)
    qkv = engine.model.decoder.layers[0].self_attention.linear_qkv.weight
    full = (engine.shape.heads + 2 * engine.shape.groups) * engine.shape.head_dim
    evidence = (
        state("tensor-parallel process group", f"{size} ranks, {dist.get_backend(group)}"),
        state("rows of the first qkv projection on this rank", f"{qkv.shape[0]} of {full}"),
    )
    actual = size if qkv.shape[0] * size == full else None
    return Reading(size, actual, evidence, Lifecycle.PROCESS_START, ran(engine) if size > 1 else Exercised.NO)


def _context_parallel(engine: Engine, layout: Layout, requested: Value) -> Reading:
    """At a score the split of the columns is the evidence; at the build the group and the probe that every rank ran."""
    group = engine.ranks.context_group
    size = dist.get_world_size(group)
    evidence = [state("context-parallel process group", f"{size} ranks, {dist.get_backend(group)}")]
    split = True
    if layout.columns:
        split = layout.local_columns * size == layout.columns
        detail = f"{layout.local_columns} of {layout.columns}"
        evidence.insert(0, execution("columns of the widest batch that entered this rank", detail))
    exercised = ran(engine) if size > 1 and layout.columns else Exercised.NO
    return Reading(size, size if split else None, tuple(evidence), Lifecycle.PROCESS_START, exercised)


def _sequence_parallel(engine: Engine, layout: Layout, requested: Value) -> Reading:
    """Of the row-parallel outputs and the embedding, every one is reduce-scattered with it and all-reduced without."""
    outputs = (2 * engine.shape.layers + 1) * engine.forwards
    scattered, reduced = engine.calls["reduce_scatter"], engine.calls["all_reduce"]
    evidence = (
        execution("reduce-scatters; all-reduces; forwards", f"{scattered}; {reduced}; {engine.forwards}"),
        state("TransformerConfig of the live model", f"sequence_parallel={engine.config.sequence_parallel}"),
    )
    configured = bool(engine.config.sequence_parallel)
    if engine.ranks.tensor == 1:
        return Reading(configured, False, evidence, exercised=Exercised.NO)
    actual = {(outputs, 0): True, (0, outputs): False}.get((scattered, reduced)) if outputs else None
    return Reading(configured, actual, evidence, exercised=ran(engine))


def _batch_size(engine: Engine, layout: Layout, requested: Value) -> Reading:
    evidence = (execution("rows of the largest batch that entered", layout.rows),)
    whole = layout.rows == min(int(str(requested)), layout.sequences)
    exercised = Exercised.YES if layout.rows > 1 else Exercised.NO
    return Reading(requested, requested if whole else layout.rows, evidence, Lifecycle.REQUEST, exercised)


def _padding_side(engine: Engine, layout: Layout, requested: Value) -> Reading:
    detail = f"{layout.padded}, each of which held its sequence from the first column on"
    evidence = (execution("rows that entered longer than their sequence", detail),)
    exercised = Exercised.YES if layout.padded else Exercised.NO
    return Reading("right", "right", evidence, Lifecycle.REQUEST, exercised)


def _temperature(engine: Engine, layout: Layout, requested: Value) -> Reading:
    evidence = (execution("rows divided; rows scored", f"{layout.divided} by {layout.temperature}; {layout.scored}"),)
    if layout.idle:
        found = state("temperature of the request on this rank, which owns no active token", layout.temperature)
        return Reading(layout.temperature, layout.temperature, (found, *evidence), Lifecycle.REQUEST, Exercised.NO)
    actual = {layout.scored: layout.temperature, 0: 1.0}.get(layout.divided) if layout.scored else None
    exercised = Exercised.YES if layout.divided else Exercised.NO
    return Reading(layout.temperature, actual, evidence, Lifecycle.REQUEST, exercised)


def _vocabulary(engine: Engine, layout: Layout, requested: Value) -> Reading:
    """Where nothing is padded both policies are the same sum, and whichever was asked for is what ran."""
    real, padded = engine.shape.vocab, engine.shape.padded
    evidence = (execution("columns that a log probability was summed over: rows", dict(engine.columns)),)
    if layout.idle:
        policy = state("policy of the request on this rank, which owns no active token", layout.policy)
        return Reading(layout.policy, layout.policy, (policy, *evidence), Lifecycle.REQUEST, Exercised.NO)
    seen = next(iter(engine.columns)) if len(engine.columns) == 1 else None
    if real == padded:
        actual = requested if seen == real else None
        return Reading(requested, actual, evidence, Lifecycle.REQUEST, Exercised.NO)
    found = {real: "mask", padded: "include"}.get(seen or 0)
    return Reading(found, found, evidence, Lifecycle.REQUEST, Exercised.YES if found else Exercised.UNKNOWN)


READERS: dict[str, Reader] = {
    switches.TENSOR_PARALLEL: _tensor_parallel,
    switches.CONTEXT_PARALLEL: _context_parallel,
    "training.sequence_parallel": _sequence_parallel,
    "batch.size": _batch_size,
    "batch.padding_side": _padding_side,
    switches.TEMPERATURE: _temperature,
    switches.VOCABULARY: _vocabulary,
}

"""Knobs read back from the live model of one rank: requested -> materialised -> actual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xcfg.plugin.operators import backend_meant
from xcfg.plugin.readback import Reading, application, execution, state, unknown
from xcfg.schema._base import Value
from xcfg.schema.names import EvidenceKind, Exercised, Lifecycle
from xcfg.schema.runtime import Evidence, KnobApplication

from xcfg_megatron.build import Engine

REQUEST_KNOBS = ("batch.size", "batch.padding_side", "batch.packing")


@dataclass(frozen=True)
class Layout:
    """What entered in a score. rows: of the largest batch; padded: rows longer than their sequence."""

    rows: int = 0
    sequences: int = 0
    padded: int = 0


Reader = Callable[[Engine, Layout, Value], Reading]


def applications(engine: Engine, layout: Layout, knobs: Mapping[str, Value]) -> tuple[KnobApplication, ...]:
    """Return one record per knob of this side on this rank."""
    return tuple(_application(engine, layout, path, value) for path, value in sorted(knobs.items()))


def _application(engine: Engine, layout: Layout, path: str, value: Value) -> KnobApplication:
    reader = READERS.get(path)
    if reader is None:
        return unknown(path, value, runtime="megatron", side="training", rank=engine.rank)
    return application(path, value, reader(engine, layout, value), side="training", rank=engine.rank)


def _ran(engine: Engine) -> Exercised:
    return Exercised.YES if engine.forwards else Exercised.UNKNOWN


def compute_dtype(engine: Engine) -> str:
    """Return the one dtype in which the decoder's matmuls were seen to compute, or an empty string."""
    return next(iter(engine.linear_inputs)) if len(engine.linear_inputs) == 1 else ""


def _dtype(engine: Engine, layout: Layout, requested: Value) -> Reading:
    stored = sorted({str(item.dtype).removeprefix("torch.") for item in engine.model.parameters()})
    evidence = (
        execution("inputs of the linear layers of the decoder", dict(engine.linear_inputs)),
        state("parameters of the live model", ", ".join(stored)),
    )
    return Reading(engine.dtype, compute_dtype(engine) or None, evidence, exercised=_ran(engine))


def _tensor_parallel(engine: Engine, layout: Layout, requested: Value) -> Reading:
    import torch.distributed as dist

    size = dist.get_world_size(engine.group)
    qkv = engine.model.decoder.layers[0].self_attention.linear_qkv.weight
    full = (engine.shape.heads + 2 * engine.shape.groups) * engine.shape.head_dim
    evidence = (
        state("tensor-parallel process group", f"{size} ranks, {dist.get_backend(engine.group)}"),
        state("rows of the first qkv projection on this rank", f"{qkv.shape[0]} of {full}"),
    )
    actual = size if qkv.shape[0] * size == full else None
    return Reading(size, actual, evidence, Lifecycle.PROCESS_START, _ran(engine) if size > 1 else Exercised.NO)


def _attention(engine: Engine, layout: Layout, requested: Value) -> Reading:
    found = {type(layer.self_attention.core_attention).__qualname__ for layer in engine.model.decoder.layers}
    evidence = (state("core attention of every layer", ", ".join(sorted(found))),)
    actual = "model_default" if len(found) == 1 else None
    return Reading(", ".join(sorted(found)), actual, evidence, exercised=_ran(engine))


def _fusion(engine: Engine, layout: Layout, requested: Value) -> Reading:
    evidence = (execution("calls of the fused SwiGLU; forwards", f"{engine.fused_calls}; {engine.forwards}"),)
    expected = engine.forwards * engine.shape.layers
    actual = {0: False, expected: True}.get(engine.fused_calls) if expected else None
    return Reading(bool(engine.config.bias_activation_fusion), actual, evidence, exercised=_ran(engine))


def _scaling(engine: Engine, layout: Layout, requested: Value) -> Reading:
    factors = [
        float(layer.self_attention.core_attention.softmax_scale) * engine.shape.head_dim**0.5
        for layer in engine.model.decoder.layers
    ]
    scaled = any(abs(factor - 1) > 0.001 for factor in factors)
    evidence = (state("softmax scale times sqrt(head_dim), by layer", ", ".join(f"{item:.3g}" for item in factors)),)
    many = Exercised.YES if len(factors) > 1 and engine.forwards else Exercised.UNKNOWN
    return Reading(bool(engine.config.apply_query_key_layer_scaling), scaled, evidence, exercised=many)


def _logp(engine: Engine, layout: Layout, requested: Value) -> Reading:
    binding = engine.operator.binding
    evidence = [state("injected operator", f"{binding.backend_id}: {type(engine.operator.function).__qualname__}")]
    if engine.operator.calls:
        evidence.insert(0, execution("calls of the injected operator", engine.operator.calls))
    exercised = Exercised.YES if engine.operator.calls else Exercised.UNKNOWN
    return Reading(backend_meant(binding, requested), binding.backend_id, tuple(evidence), exercised=exercised)


def _batch_size(engine: Engine, layout: Layout, requested: Value) -> Reading:
    evidence = (execution("rows of the largest batch that entered", layout.rows),)
    whole = layout.rows == requested or layout.sequences < int(str(requested))
    exercised = Exercised.YES if layout.rows > 1 else Exercised.NO
    return Reading(requested, requested if whole else layout.rows, evidence, Lifecycle.REQUEST, exercised)


def _padding_side(engine: Engine, layout: Layout, requested: Value) -> Reading:
    detail = f"{layout.padded}, each of which held its sequence from the first column on"
    evidence = (execution("rows that entered longer than their sequence", detail),)
    exercised = Exercised.YES if layout.padded else Exercised.NO
    return Reading("right", "right", evidence, Lifecycle.REQUEST, exercised)


def _inherent(value: Value, lifecycle: Lifecycle, detail: str) -> Reader:
    def read(engine: Engine, layout: Layout, requested: Value) -> Reading:
        evidence = (Evidence(kind=EvidenceKind.INHERENT, source="runtime 'megatron'", detail=detail),)
        return Reading(value, value, evidence, lifecycle, Exercised.NO)

    return read


READERS: dict[str, Reader] = {
    "training.compute_dtype": _dtype,
    "training.tensor_parallel_size": _tensor_parallel,
    "training.attention_backend": _attention,
    "training.bias_activation_fusion": _fusion,
    "training.query_key_layer_scaling": _scaling,
    "training.sharding": _inherent("unsharded", Lifecycle.PROCESS_START, "parameters lie whole on their ranks"),
    "logp.backend": _logp,
    "batch.size": _batch_size,
    "batch.padding_side": _padding_side,
    "batch.packing": _inherent(False, Lifecycle.REQUEST, "one sequence a row"),
}

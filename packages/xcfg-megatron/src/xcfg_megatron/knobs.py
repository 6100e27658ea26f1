"""Knobs and operators read back from the live model of one rank: requested -> materialised -> actual."""

from __future__ import annotations

from collections.abc import Mapping

from xcfg.plugin.readback import HEAD, Reading, application, is_operator, operator_path, state, unknown
from xcfg.plugin.stated import OPTIONS
from xcfg.schema._base import Value
from xcfg.schema.names import EvidenceKind, Exercised, Lifecycle
from xcfg.schema.runtime import Evidence, KnobApplication

from xcfg_megatron import read_flags, read_layout, read_operators, switches
from xcfg_megatron.engine import Engine
from xcfg_megatron.head import read_head
from xcfg_megatron.readers import Layout, Reader, ran

REQUEST_KNOBS = ("batch.size", "batch.padding_side", "batch.packing", switches.TEMPERATURE, switches.VOCABULARY)


def applications(engine: Engine, layout: Layout, knobs: Mapping[str, Value]) -> tuple[KnobApplication, ...]:
    """Return one record per knob of this side on this rank, and one per operator bound beside the log probability."""
    owed: dict[str, Value] = dict(knobs)
    owed |= {
        path: operator.binding.requested
        for operation, operator in engine.operators.items()
        if (path := operator_path(operation)) not in owed and operation != "selected_logprob"
    }
    return tuple(_application(engine, layout, path, value) for path, value in sorted(owed.items()))


def _application(engine: Engine, layout: Layout, path: str, value: Value) -> KnobApplication:
    reader = READERS.get(path)
    if reader is None and is_operator(path):
        reader = read_operators.slot_reader(path)
    if reader is None and path.startswith(OPTIONS):
        reader = read_operators.option_reader(path)
    if reader is None:
        return unknown(path, value, runtime="megatron", side="training", rank=engine.ranks.rank)
    return application(path, value, reader(engine, layout, value), side="training", rank=engine.ranks.rank)


def compute_dtype(engine: Engine) -> str:
    """Return the one dtype in which the decoder's matmuls were seen to compute, or an empty string."""
    return next(iter(engine.linear_inputs)) if len(engine.linear_inputs) == 1 else ""


def _dtype(engine: Engine, layout: Layout, requested: Value) -> Reading:
    stored = sorted({str(item.dtype).removeprefix("torch.") for item in engine.model.parameters()})
    evidence = (
        Evidence(
            kind=EvidenceKind.EXECUTION,
            source="inputs of the linear layers of the decoder",
            detail=str(dict(engine.linear_inputs)),
        ),
        state("parameters of the live model", ", ".join(stored)),
    )
    return Reading(engine.dtype, compute_dtype(engine) or None, evidence, exercised=ran(engine))


def _inherent(value: Value, lifecycle: Lifecycle, detail: str) -> Reader:
    def read(engine: Engine, layout: Layout, requested: Value) -> Reading:
        evidence = (Evidence(kind=EvidenceKind.INHERENT, source="runtime 'megatron'", detail=detail),)
        return Reading(value, value, evidence, lifecycle, Exercised.NO)

    return read


READERS: dict[str, Reader] = {
    "training.compute_dtype": _dtype,
    "training.sharding": _inherent("unsharded", Lifecycle.PROCESS_START, "parameters lie whole on their ranks"),
    "batch.packing": _inherent(False, Lifecycle.REQUEST, "one sequence a row"),
    **read_layout.READERS,
    **read_flags.READERS,
    **read_operators.READERS,
    operator_path(HEAD): read_head,
}

"""Construction and process knobs read back from the live engine: requested -> materialised -> actual.

The same readers serve the build, after a probe forward of four tokens, and every score: what is reported is
what the hooks and the live objects said in that window, never the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from xcfg.plugin.operators import backend_meant
from xcfg.schema._base import Value
from xcfg.schema.names import Applied, EvidenceKind, Exercised, Lifecycle
from xcfg.schema.runtime import Evidence, KnobApplication

from xcfg_torch.attention import backend_that_ran
from xcfg_torch.engine import Engine
from xcfg_torch.fsdp import local, placements
from xcfg_torch.load import dtype_name

REQUEST_KNOBS = ("batch.size", "batch.padding_side", "batch.packing")


@dataclass(frozen=True)
class Reading:
    """What a reader found. An `actual` of None: nothing could be observed.

    materialized: for an operator, the backend that the requested name means in the binding; `actual` is held to it.
    """

    materialized: Value
    actual: Value
    evidence: tuple[Evidence, ...]
    lifecycle: Lifecycle = Lifecycle.ENGINE_CONSTRUCTION
    exercised: Exercised = Exercised.UNKNOWN
    reason: str = ""


Reader = Callable[[Engine, Value], Reading]


def execution(source: str, detail: str) -> Evidence:
    """Return evidence from calls or counters."""
    return Evidence(kind=EvidenceKind.EXECUTION, source=source, detail=detail)


def state(source: str, detail: str) -> Evidence:
    """Return evidence from live objects."""
    return Evidence(kind=EvidenceKind.STATE, source=source, detail=detail)


def application(engine: Engine, path: str, requested: Value, reading: Reading) -> KnobApplication:
    """Return the record of one reading; its status follows from comparing actual with requested.

    What runs as an operator is a backend, so there it is compared with what the requested name means in the binding.
    """
    wanted = reading.materialized if path == "logp.backend" else requested
    same = type(reading.actual) is type(wanted) and reading.actual == wanted
    status = Applied.APPLIED if same else Applied.UNOBSERVABLE if reading.actual is None else Applied.FALLBACK
    reason = reading.reason
    if not reason and status is Applied.FALLBACK:
        reason = f"asked for {requested!r}, the engine runs {reading.actual!r}"
    return KnobApplication(
        path=path,
        side=engine.side,
        rank=engine.rank,
        requested=requested,
        materialized=reading.materialized,
        actual=reading.actual,
        status=status,
        lifecycle=reading.lifecycle,
        evidence=reading.evidence,
        exercised=reading.exercised,
        reason=reason,
    )


def construction_applications(engine: Engine, knobs: dict[str, Value], *, scored: bool) -> tuple[KnobApplication, ...]:
    """Return one record per construction or process knob in `knobs`.

    scored: the counters are those of a score, not of the probe at build.
    """
    result = []
    for path, value in sorted(knobs.items()):
        if path in REQUEST_KNOBS:
            continue
        reader = READERS.get(path)
        if reader is None and not path.startswith("logprob."):
            result.append(_unknown(engine, path, value))
            continue
        reading = _operator_option(engine, path) if reader is None else reader(engine, value)
        if scored and reading.exercised is Exercised.UNKNOWN and reading.actual is not None:
            reading = Reading(
                reading.materialized,
                reading.actual,
                reading.evidence,
                reading.lifecycle,
                Exercised.YES,
                reading.reason,
            )
        result.append(application(engine, path, value, reading))
    return tuple(result)


def _unknown(engine: Engine, path: str, value: Value) -> KnobApplication:
    return KnobApplication(
        path=path,
        side=engine.side,
        rank=engine.rank,
        requested=value,
        materialized=None,
        actual=None,
        status=Applied.UNSUPPORTED,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        reason=f"the runtime 'torch' does not have {path!r}",
    )


def _dtype(engine: Engine, requested: Value) -> Reading:
    counted = engine.observer.linear_inputs
    stored = Counter(dtype_name(item.dtype) for item in engine.model.parameters())
    evidence = [state("parameters of the live model", _listing(stored))]
    if counted:
        detail = f"{_listing(counted)}; in {engine.observer.sampled_forwards} of {engine.observer.forwards} forwards"
        evidence.insert(0, execution("inputs of the matmuls in decoder blocks", detail))
    observed = engine.observer.compute_dtype() or None
    reason = f"matmul inputs are {_listing(counted)}" if len(counted) > 1 else ""
    if observed is None:
        reason = "no matmul of a decoder block was seen"
    return Reading(engine.dtype, observed, tuple(evidence), reason=reason)


def _attention(engine: Engine, requested: Value) -> Reading:
    layers = len({index for index, _ in engine.parts.attention})
    ran, detail = backend_that_ran(engine.observer.watch, layers)
    configured = str(getattr(engine.model.config, "_attn_implementation", ""))
    evidence: tuple[Evidence, ...] = (execution("functions called inside attention modules", detail),)
    if engine.observer.watch.kernels:
        evidence += (execution("kernel that SDPA dispatches to", _listing(engine.observer.watch.kernels)),)
    if not ran:
        return Reading(configured, None, evidence, reason=detail)
    actual = "model_default" if requested == "model_default" and ran == configured else ran
    return Reading(configured, actual, evidence)


def _sharding(engine: Engine, requested: Value) -> Reading:
    found = placements(engine.model)
    held = sum(local(item).numel() for item in engine.model.parameters())
    total = engine.sharding.total_parameters
    sharded = any(name.startswith("Shard") for name in found) and held < total
    whole = held == total and set(found) == {"plain tensor"}
    actual = "fsdp" if sharded else "unsharded" if whole else None
    evidence = [
        state("parameter placements", _listing(found)),
        state("parameters on this rank", f"{held} of {total}, world size {engine.sharding.world_size}"),
    ]
    if sharded:
        evidence.append(execution("all-gather collectives counted", str(engine.sharding.all_gathers)))
        if not engine.sharding.all_gathers:
            actual = None
    reason = "" if actual else "parameters are neither whole nor gathered shards"
    return Reading(engine.sharding.name, actual, tuple(evidence), Lifecycle.PROCESS_START, reason=reason)


def _logp_backend(engine: Engine, requested: Value) -> Reading:
    operator = engine.operator
    binding = operator.binding
    function = operator.function
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
    evidence = [state("injected operator", f"{binding.backend_id}: {name}")]
    if operator.calls:
        evidence.insert(0, execution("calls of the injected operator", str(operator.calls)))
    exercised = Exercised.YES if operator.calls else Exercised.UNKNOWN
    return Reading(backend_meant(binding, requested), binding.backend_id, tuple(evidence), exercised=exercised)


def _operator_option(engine: Engine, path: str) -> Reading:
    """Read a `logprob.*` knob: an option that the injected operator was built with."""
    name = path.partition(".")[2]
    options = engine.operator.binding.options
    if name not in options:
        return Reading(
            None,
            None,
            (),
            reason=f"{engine.operator.binding.backend_id!r} was built without the option {name!r}",
        )
    evidence = (state("options of the injected operator", f"{name}={options[name]!r}"),)
    return Reading(options[name], options[name], evidence)


def _inherent(value: Value, lifecycle: Lifecycle, source: str) -> Reader:
    def read(engine: Engine, requested: Value) -> Reading:
        evidence = (Evidence(kind=EvidenceKind.INHERENT, source=source, detail=repr(value)),)
        return Reading(value, value, evidence, lifecycle, Exercised.NO)

    return read


def _listing(counts: Counter[str] | dict[str, int]) -> str:
    return ", ".join(f"{name} x {count}" for name, count in sorted(counts.items())) or "none"


READERS: dict[str, Reader] = {
    "rollout.dtype": _dtype,
    "training.compute_dtype": _dtype,
    "rollout.attention_backend": _attention,
    "training.attention_backend": _attention,
    "training.sharding": _sharding,
    "logp.backend": _logp_backend,
    "rollout.tensor_parallel_size": _inherent(1, Lifecycle.PROCESS_START, "one process holds the whole model"),
    "rollout.context_parallel_size": _inherent(1, Lifecycle.PROCESS_START, "one process holds the whole context"),
    "rollout.enable_prefix_caching": _inherent(
        False, Lifecycle.ENGINE_CONSTRUCTION, "every replay starts from an empty cache"
    ),
    "rollout.enforce_eager": _inherent(True, Lifecycle.ENGINE_CONSTRUCTION, "the model is called, never compiled"),
}

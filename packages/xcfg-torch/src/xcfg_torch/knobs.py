"""Construction and process knobs read back from the live engine: requested -> materialised -> actual.

The same readers serve the build, after a probe forward of four tokens, and every score: what is reported is
what the hooks and the live objects said in that window, never the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from xcfg.plugin.operators import backend_meant
from xcfg.plugin.readback import HEAD, OPERATOR_KNOB, Reading, application, execution, operator_path, state, unknown
from xcfg.plugin.stated import OPTIONS, Statements, option_reading, shown_by
from xcfg.schema._base import Value
from xcfg.schema.names import EvidenceKind, Exercised, Lifecycle
from xcfg.schema.runtime import Evidence, KnobApplication

from xcfg_torch.attention import backend_that_ran
from xcfg_torch.engine import Engine
from xcfg_torch.fsdp import local, placements
from xcfg_torch.head import head_reading
from xcfg_torch.load import dtype_name
from xcfg_torch.mixed_knobs import MASTER, OUTPUT, SAME, UNCAST
from xcfg_torch.mixed_precision import live_policies, returned_by_root

REQUEST_KNOBS = ("batch.size", "batch.padding_side", "batch.packing")
HEAD_PATH = operator_path(HEAD)

Reader = Callable[[Engine, Value], Reading]


def construction_applications(engine: Engine, knobs: dict[str, Value], *, scored: bool) -> tuple[KnobApplication, ...]:
    """Return one record per construction or process knob in `knobs`, and one of the head's operator where it is bound.

    scored: the counters are those of a score, not of the probe at build.
    """
    result = []
    bound = {} if engine.head is None else {HEAD_PATH: engine.head.operator.binding.requested}
    for path, value in sorted({**bound, **knobs}.items()):
        if path in REQUEST_KNOBS or (not scored and _shown_by(engine, path)):
            continue
        reader = READERS.get(path)
        if reader is None and not path.startswith(OPTIONS):
            result.append(unknown(path, value, runtime="torch", side=engine.side, rank=engine.rank))
            continue
        reading = _operator_option(engine, path) if reader is None else reader(engine, value)
        if scored and reading.exercised is Exercised.UNKNOWN and reading.actual is not None:
            reading = Reading(
                reading.materialized,
                reading.actual,
                reading.evidence,
                reading.lifecycle,
                _shown_by_a_score(engine, path),
                reading.reason,
            )
        result.append(application(path, value, reading, side=engine.side, rank=engine.rank))
    return tuple(result)


def _shown_by_a_score(engine: Engine, path: str) -> Exercised:
    """Return what a score says of a setting that acts in every forward; one of the operator acts where it is called."""
    of_the_operator = path in (OPERATOR_KNOB, HEAD_PATH) or path.startswith(OPTIONS)
    return Exercised.NO if of_the_operator and not engine.scorer.calls else Exercised.YES


def _dtype(engine: Engine, requested: Value) -> Reading:
    counted = engine.observer.linear_inputs
    stored = Counter(dtype_name(item.dtype) for item in engine.model.parameters())
    evidence = [state("parameters of the live model", _listing(stored)), *_policies(engine)]
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


def _master(engine: Engine, requested: Value) -> Reading:
    """Read the dtype in which the shards lie, beside the one that the matmuls were given."""
    stored = Counter(dtype_name(local(item).dtype) for item in engine.model.parameters())
    used = engine.observer.linear_weights
    evidence = [state("shards of the live model", _listing(stored)), *_policies(engine)]
    if used:
        evidence.insert(0, execution("weights inside the matmuls of decoder blocks", _listing(used)))
    one = next(iter(stored)) if len(stored) == 1 else None
    if one is None or not used:
        return Reading(requested, None, tuple(evidence), reason="no single dtype of the weights was seen")
    return Reading(requested, SAME if requested == SAME and set(used) == {one} else one, tuple(evidence))


def _output(engine: Engine, requested: Value) -> Reading:
    """Read whether the logits were cast on their way out of the model."""
    head, left = engine.observer.head_outputs, engine.observer.model_outputs
    detail = f"left the head {_listing(head)}; left the model {_listing(left)}"
    evidence = (execution("logits", detail), *_policies(engine))
    if len(left) != 1 or len(head) != 1:
        return Reading(requested, None, evidence, reason="no single dtype of the logits was seen")
    cast = returned_by_root(engine.model) is not None or set(head) != set(left)
    return Reading(requested, next(iter(left)) if cast else UNCAST, evidence)


def _policies(engine: Engine) -> tuple[Evidence, ...]:
    found = live_policies(engine.model)
    return (state("MixedPrecisionPolicy of the live FSDP states", _listing(found)),) if found else ()


def _logp_backend(engine: Engine, requested: Value) -> Reading:
    head = engine.injected_head
    if head is not None:
        evidence = [execution("calls of the operator in the place of the head", head.operator.calls)]
        return Reading(
            backend_meant(engine.operator.binding, requested), head.operator.binding.backend_id, (*evidence,)
        )
    operator = engine.operator
    binding = operator.binding
    function = operator.function
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
    evidence = [state("injected operator", f"{binding.backend_id}: {name}")]
    if operator.calls:
        evidence.insert(0, execution("calls of the injected operator", str(operator.calls)))
    exercised = Exercised.YES if operator.calls else Exercised.UNKNOWN
    return Reading(backend_meant(binding, requested), binding.backend_id, tuple(evidence), exercised=exercised)


def _head(engine: Engine, requested: Value) -> Reading:
    if engine.head is None:
        return Reading(None, None, (), reason=f"no backend of {HEAD} was bound")
    return head_reading(engine.head, sum(engine.observer.head_rows.values()), requested)


def _operator_option(engine: Engine, path: str) -> Reading:
    """Read an option of the injected operator; whether a score exercised it is said where all of them are."""
    binding, found = engine.scorer.binding, Statements()
    found.add(engine.scorer.statements)
    if engine.backward is not None:
        found.add_options(engine.backward.stated.options)
    return option_reading(path, binding.backend_id, binding.options, found, None)


def _shown_by(engine: Engine, path: str) -> str:
    """Return what alone can show the option of a `logprob.*` knob: `backward`, `entropy`; empty for any call."""
    return shown_by(engine.scorer.function).get(path.removeprefix(OPTIONS), "") if path.startswith(OPTIONS) else ""


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
    MASTER: _master,
    OUTPUT: _output,
    OPERATOR_KNOB: _logp_backend,
    HEAD_PATH: _head,
    "rollout.tensor_parallel_size": _inherent(1, Lifecycle.PROCESS_START, "one process holds the whole model"),
    "rollout.context_parallel_size": _inherent(1, Lifecycle.PROCESS_START, "one process holds the whole context"),
    "rollout.enable_prefix_caching": _inherent(
        False, Lifecycle.ENGINE_CONSTRUCTION, "every replay starts from an empty cache"
    ),
    "rollout.enforce_eager": _inherent(True, Lifecycle.ENGINE_CONSTRUCTION, "the model is called, never compiled"),
}

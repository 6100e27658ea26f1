"""Knobs read back on every rank: requested -> materialised -> actual, from live objects and from what ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xcfg.plugin.readback import Reading, application, execution, operator_path, state, unknown
from xcfg.plugin.stated import OPTIONS, Statements
from xcfg.schema._base import Value
from xcfg.schema.names import EvidenceKind, Exercised, Lifecycle
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.runtime import Evidence, KnobApplication

from xcfg_vllm.capabilities import FLAT
from xcfg_vllm.operator_knobs import OURS, layer_reading, logprob_option, logprob_reading
from xcfg_vllm.recorder import DIGITS

REQUEST_KNOBS = ("batch.size", "batch.padding_side", "batch.packing", "rollout.temperature")
CUSTOM_OPS = "rollout.custom_ops"
FAILED_RELOAD = "the reload did not put back what was spoiled, or left packed layers as they were"
FP8 = {"fp8": "uint8", "fp8_e4m3": "uint8", "fp8_e5m2": "uint8"}
IMPLEMENTATIONS = {
    "CPU_ATTN": "CPUAttentionBackendImpl",
    "FLASH_ATTN": "FlashAttentionImpl",
    "TRITON_ATTN": "TritonAttentionImpl",
    "FLASHINFER": "FlashInferImpl",
    "FLEX_ATTENTION": "FlexAttentionImpl",
}


@dataclass(frozen=True)
class Window:
    """What one rank showed. facts: see facts.py. counters: of the score; empty at build. built: arguments of LLM.

    statements: what an injected selected_logprob stated of the calls of the score.
    """

    rank: int
    facts: Mapping[str, Any]
    counters: Mapping[str, int]
    built: Mapping[str, Any]
    bindings: Mapping[str, OperatorBinding]
    cached_tokens: int = 0
    statements: Statements = field(default_factory=Statements)

    def calls(self, operation: str) -> int | None:
        """Return how often an injected operator was called in the score; None at build, where nobody counted."""
        return self.counters.get(f"operator.{operation}", 0) if self.counters else None


def applications(window: Window, knobs: Mapping[str, Value]) -> tuple[KnobApplication, ...]:
    """Return one record per knob of this side, and per bound operator, on one rank."""
    found = [_application(window, path, value) for path, value in sorted(knobs.items())]
    found += _beside(window, knobs)
    for operation, binding in sorted(window.bindings.items()):
        if operation == "selected_logprob":
            continue
        reading = layer_reading(operation, window.facts, window.calls(operation), binding, _ran(window))
        path = operator_path(operation)
        found.append(application(path, binding.requested, reading, side="rollout", rank=window.rank))
    return tuple(found)


def _application(window: Window, path: str, value: Value) -> KnobApplication:
    reader = READERS.get(path)
    if path.startswith(OPTIONS):
        found = logprob_option(path, window.facts, window.calls("selected_logprob"), window.statements)
        return application(path, value, found, side="rollout", rank=window.rank)
    if reader is None:
        return unknown(path, value, runtime="vllm", side="rollout", rank=window.rank)
    return application(path, value, reader(window, value), side="rollout", rank=window.rank)


def _beside(window: Window, knobs: Mapping[str, Value]) -> list[KnobApplication]:
    """Return what nobody asked for and a compiler changes behind everybody's back, where it can be seen."""
    if CUSTOM_OPS in knobs or "custom_op_methods" not in window.facts:
        return []
    reading = _custom_ops(window, None)
    told = application(CUSTOM_OPS, reading.actual, reading, side="rollout", rank=window.rank)
    return [told] if reading.actual is not None else []


def _ran(window: Window) -> Exercised:
    return Exercised.YES if window.counters.get("forwards") else Exercised.UNKNOWN


def _dtype(window: Window, requested: Value) -> Reading:
    stored = window.facts["parameter_dtypes"]
    layers, head = dict(window.facts.get("linear_inputs", {})), dict(window.facts.get("head_inputs", {}))
    evidence = [state("parameters of the live model", stored)]
    if head:
        evidence.insert(0, execution("hidden states that reached the head", head))
    if layers:
        evidence.insert(0, execution("inputs of the linear layers", layers))
    seen = set(stored) | set(layers) | set(head)
    missed = bool(window.counters) and not head
    actual = next(iter(seen)) if len(seen) == 1 and not missed else None
    reason = "" if actual else f"parameters are {sorted(stored)}, seen at layers and head: {sorted(seen) or 'nothing'}"
    return Reading(window.built.get("dtype"), actual, tuple(evidence), exercised=_ran(window), reason=reason)


def _tensor_parallel(window: Window, requested: Value) -> Reading:
    size = int(window.facts["tensor_parallel_size"])
    detail = f"{size} ranks; {window.facts['communicator'] or 'no communicator'}; {window.facts['group_backend']}"
    exercised = _ran(window) if size > 1 else Exercised.NO
    evidence = (state("tensor-parallel group of the live worker", detail),)
    return Reading(size, size, evidence, Lifecycle.PROCESS_START, exercised)


def _scheduled(window: Window, name: str) -> tuple[Any, tuple[Evidence, ...], str]:
    """Return what the live scheduler says, the evidence, and why there is none with several ranks."""
    if name not in window.facts:
        return None, (), "the scheduler of an engine with several ranks lies in a process that shows nobody its objects"
    return window.facts[name], (state("live scheduler", window.facts[name]),), ""


def _prefix(window: Window, requested: Value) -> Reading:
    cached = int(window.facts["probe_cached"]) + window.cached_tokens
    detail = f"{window.facts['probe_cached']} on prefilling one prompt twice; {window.cached_tokens} in this score"
    evidence = [execution("tokens that a cache brought", detail)]
    if "prefix_caching" in window.facts:
        evidence.append(state("cache manager of the live scheduler", window.facts["prefix_caching"]))
    seen = window.facts.get("prefix_caching")
    fills = int(window.facts["max_model_len"]) > int(window.facts["block_size"] or 0)
    # Where no prompt fills a block no cache can bring a token, so off is what runs whatever was built.
    actual = True if cached else seen if seen is not None else False if fills or requested is False else None
    reason = "" if actual is not None else "no prompt fills a block, and the scheduler is out of sight"
    exercised = Exercised.YES if window.cached_tokens else Exercised.NO
    return Reading(actual, actual, tuple(evidence), exercised=exercised, reason=reason)


def _eager(window: Window, requested: Value) -> Reading:
    mode, graphs = window.facts["compilation_mode"], window.facts["cudagraph_mode"]
    wrapped = window.facts["not_compiled"]
    detail = f"left uncompiled {wrapped}; compilation {mode} ({window.facts['compilation_backend']}), graphs {graphs}"
    eager = bool(wrapped) and all(wrapped) and graphs == "NONE"
    compiled = bool(wrapped) and not any(wrapped)
    actual = True if eager else False if compiled else None
    evidence = (state("compiling wrappers of the live model", detail),)
    if compiled and window.facts["compilation_backend"] == "eager":
        reason = "the compiler's backend is 'eager' (VLLM_CPU_CI_ENV): graphs are traced and run as they stand"
        return Reading(mode == "NONE", None, evidence, reason=reason)
    return Reading(mode == "NONE", actual, evidence, exercised=_ran(window))


def _attention(window: Window, requested: Value) -> Reading:
    found = window.facts["attention_impl"]
    evidence = (state("implementation in every attention layer", found),)
    if len(found) == 1 and next(iter(found)).startswith(OURS):
        backend = window.facts["operators"].get("attention")
        return Reading(None, backend, evidence, exercised=_ran(window), reason=f"the operator {backend} computes it")
    if requested == "model_default" and len(found) == 1:
        return Reading(next(iter(found)), "model_default", evidence, exercised=_ran(window))
    return Reading(None, None, evidence, reason="the layers do not agree on one implementation")


def _engine_attention(window: Window, requested: Value) -> Reading:
    found = window.facts["attention_impl"]
    told = window.facts["attention_backend_config"]
    evidence = (
        state("implementation in every attention layer", found),
        Evidence(kind=EvidenceKind.CONFIG, source="attention_config.backend", detail=told),
    )
    running = {name for name, kind in IMPLEMENTATIONS.items() if any(item.endswith("." + kind) for item in found)}
    actual = next(iter(running)) if len(running) == 1 and len(found) == 1 else None
    reason = "" if actual else f"the layers run {', '.join(found)}, which no name stands for"
    return Reading(told, actual, evidence, exercised=_ran(window), reason=reason)


def _tokens(window: Window, requested: Value) -> Reading:
    actual, evidence, reason = _scheduled(window, "max_num_batched_tokens")
    largest, chunked = window.counters.get("max_tokens", 0), window.counters.get("chunked", 0)
    exercised = Exercised.UNKNOWN
    if window.counters:
        ran = f"{largest}; {chunked}"
        evidence += (execution("tokens of the largest forward; prefills that ran in pieces", ran),)
        exercised = Exercised.YES if chunked else Exercised.NO
    if actual is not None and largest > actual:
        return Reading(actual, None, evidence, reason=f"a forward of {largest} tokens ran")
    return Reading(actual, actual, evidence, exercised=exercised, reason=reason)


def _sequences(window: Window, requested: Value) -> Reading:
    actual, evidence, reason = _scheduled(window, "max_num_seqs")
    largest, submitted = window.counters.get("max_requests", 0), window.counters.get("submitted", 0)
    exercised = Exercised.UNKNOWN
    if window.counters:
        evidence += (execution("requests of the largest forward; most submitted at once", f"{largest}; {submitted}"),)
        exercised = Exercised.YES if actual is not None and submitted > actual else Exercised.NO
    if actual is not None and largest > actual:
        return Reading(actual, None, evidence, reason=f"a forward of {largest} requests ran")
    return Reading(actual, actual, evidence, exercised=exercised, reason=reason)


def _block(window: Window, requested: Value) -> Reading:
    actual = window.facts["block_size"]
    evidence = (state("block table and key-value cache tensors", window.facts["kv_cache"]),)
    reason = "" if actual else "the cache does not hold as many values as its block table says"
    return Reading(requested, actual, evidence, exercised=_ran(window), reason=reason)


def _kv_dtype(window: Window, requested: Value) -> Reading:
    stored, formats = set(window.facts["kv_cache_dtypes"]), set(window.facts["kv_cache_formats"])
    evidence = (
        state("format in which the attention layers read the cache", window.facts["kv_cache_formats"]),
        state("key-value cache tensors of the worker", window.facts["kv_cache_dtypes"]),
    )
    name = next(iter(formats)) if len(formats) == 1 else ""
    held = {FP8[name]} if name in FP8 else {name} if name != "auto" else set(window.facts["parameter_dtypes"])
    actual: Value = name if name and stored == held else None
    if requested == "auto" and stored == set(window.facts["parameter_dtypes"]):
        actual = "auto"
    return Reading(requested, actual, evidence, exercised=_ran(window))


def _custom_ops(window: Window, requested: Value) -> Reading:
    methods = window.facts["custom_op_methods"]
    native = sum(count for name, count in methods.items() if name.endswith(".forward_native"))
    total = sum(methods.values())
    actual = None if not total else "none" if native == total else "all" if native == 0 else None
    mixed = f"{native} of {total} custom-op modules run torch's operations"
    reason = "" if actual else mixed if total else "the model has no custom-op module"
    evidence = (state("methods to which the custom-op modules dispatch", methods),)
    return Reading(",".join(window.facts["custom_ops"]), actual, evidence, exercised=_ran(window), reason=reason)


def _batch_size(window: Window, requested: Value) -> Reading:
    largest, submitted = window.counters.get("max_requests", 0), window.counters.get("submitted", 0)
    evidence = (execution("most requests submitted at once; most in one forward", f"{submitted}; {largest}"),)
    whole = submitted == min(int(str(requested)), window.counters["sequences"])
    exercised = Exercised.YES if largest > 1 else Exercised.NO
    return Reading(requested, requested if whole else submitted, evidence, Lifecycle.REQUEST, exercised)


def _inherent(value: Value) -> Callable[[Window, Value], Reading]:
    def read(window: Window, requested: Value) -> Reading:
        evidence = (Evidence(kind=EvidenceKind.INHERENT, source="runtime 'vllm'", detail=FLAT),)
        return Reading(value, value, evidence, Lifecycle.REQUEST, Exercised.NO)

    return read


def _logp(window: Window, requested: Value) -> Reading:
    calls = window.calls("selected_logprob")
    return logprob_reading(window.facts, calls, window.bindings["selected_logprob"], requested, _ran(window))


def _chunked(window: Window, requested: Value) -> Reading:
    actual, evidence, reason = _scheduled(window, "chunked_prefill")
    pieces = window.counters.get("chunked", 0)
    exercised = Exercised.UNKNOWN
    if window.counters:
        evidence += (execution("prefills that ran in pieces", pieces),)
        exercised = Exercised.YES if pieces else Exercised.NO
    if pieces and actual is False:
        return Reading(actual, None, evidence, reason=f"{pieces} prefills ran in pieces all the same")
    return Reading(actual, actual, evidence, exercised=exercised, reason=reason)


def _mode(window: Window, requested: Value) -> Reading:
    actual = str(window.facts["logprobs_mode"])
    acting = [item for item in window.facts.get("temperatures", ()) if item not in (0.0, 1.0)]
    exercised = Exercised.UNKNOWN if not window.counters else Exercised.YES if acting else Exercised.NO
    return Reading(actual, actual, (state("mode of the live sampler", actual),), exercised=exercised)


def _temperature(window: Window, requested: Value) -> Reading:
    seen = list(window.facts.get("temperatures", ()))
    if not window.counters:
        return Reading(requested, None, (), Lifecycle.REQUEST, reason="no request has run yet")
    evidence = (execution("temperatures of the live batches", seen),)
    raw = window.facts["logprobs_mode"] == "raw_logprobs"
    met = len(seen) == 1 and abs(seen[0] - float(str(requested))) < 10.0**-DIGITS
    exercised = Exercised.NO if raw else Exercised.YES
    return Reading(requested, requested if met else None, evidence, Lifecycle.REQUEST, exercised)


def _runner(window: Window, requested: Value) -> Reading:
    kind = str(window.facts["runner_kind"])
    evidence = (state("type of the live model runner", window.facts["runner"]),)
    return Reading(kind, kind, evidence, Lifecycle.PROCESS_START, _ran(window))


def _batch_invariant(window: Window, requested: Value) -> Reading:
    actual = window.facts["batch_invariant"]
    evidence = (state("mode of vLLM's batch-invariant kernels in the worker", actual),)
    return Reading(actual, actual, evidence, Lifecycle.PROCESS_START, _ran(window))


def _all_reduce(window: Window, requested: Value) -> Reading:
    kernels = window.facts["all_reduce_kernels"]
    evidence = (state("live communicator, kernels of its own", f"{window.facts['communicator']}: {kernels}"),)
    if kernels is None:
        return Reading(None, None, evidence, reason="one rank sums nothing")
    if kernels:
        return Reading("custom", None, evidence, reason=f"vLLM chooses for each tensor among {', '.join(kernels)}")
    return Reading("library", "library", evidence, exercised=_ran(window))


def _weights_path(window: Window, requested: Value) -> Reading:
    told = str(window.facts["reloaded"])
    if not told:
        return Reading("load", "load", (state("weights since the build", "never reloaded"),), exercised=_ran(window))
    evidence = (execution("folds of the weights", told),)
    return Reading("reload", None if told == FAILED_RELOAD else "reload", evidence, exercised=_ran(window))


READERS: dict[str, Callable[[Window, Value], Reading]] = {
    "rollout.dtype": _dtype,
    "rollout.tensor_parallel_size": _tensor_parallel,
    "rollout.context_parallel_size": _inherent(1),
    "rollout.enable_prefix_caching": _prefix,
    "rollout.enforce_eager": _eager,
    "rollout.attention_backend": _attention,
    "rollout.engine_attention": _engine_attention,
    "rollout.max_num_batched_tokens": _tokens,
    "rollout.max_num_seqs": _sequences,
    "rollout.block_size": _block,
    "rollout.kv_cache_dtype": _kv_dtype,
    CUSTOM_OPS: _custom_ops,
    "rollout.enable_chunked_prefill": _chunked,
    "rollout.logprobs_mode": _mode,
    "rollout.temperature": _temperature,
    "rollout.model_runner": _runner,
    "rollout.batch_invariant": _batch_invariant,
    "rollout.all_reduce_backend": _all_reduce,
    "weights.path": _weights_path,
    "batch.size": _batch_size,
    "batch.padding_side": _inherent("right"),
    "batch.packing": _inherent(False),
    "logp.backend": _logp,
}

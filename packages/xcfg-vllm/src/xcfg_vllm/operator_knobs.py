"""Which backend runs as each operator on one rank, from live layers, live functions and counters since reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xcfg.plugin.operators import backend_meant
from xcfg.plugin.readback import SELECTED, Reading, execution, state
from xcfg.plugin.stated import Statements, option_reading
from xcfg.schema._base import Value
from xcfg.schema.names import Exercised
from xcfg.schema.operators import OperatorBinding

from xcfg_vllm.capabilities import LAYERS, NATIVE

OURS = "xcfg_vllm.inject."
STOCK = {
    "v1": (
        "vllm.v1.sample.sampler.Sampler.compute_logprobs",
        "vllm.v1.sample.sampler.Sampler.gather_logprobs",
    ),
    "v2": ("vllm.v1.worker.gpu.sample.logprob.compute_token_logprobs",),
}
"""The functions of vLLM that compute log probabilities, by runner."""
SOURCES = {"v1": "vllm/v1/sample/sampler.py", "v2": "worker/gpu/sample/logprob.py"}
INJECTED = {
    "v1": (f"{OURS}logprob.keep_logits", f"{OURS}logprob.gather_selected"),
    "v2": (f"{OURS}logprob.token_logprobs",),
}


def logprob_reading(
    facts: Mapping[str, Any], calls: int | None, binding: OperatorBinding, requested: Value, exercised: Exercised
) -> Reading:
    """Return what computes selected log probabilities. calls: of the injected operator; None where no score ran."""
    meant = backend_meant(binding, requested)
    running, runner = tuple(facts["logprob_functions"]), str(facts["runner_kind"])
    sources, mode = list(facts["logprob_sources"]), str(facts["logprobs_mode"])
    detail = f"{'; '.join(running)}; {sources}; {mode}"
    evidence = [state("functions of the live sampler, their source, its mode", detail)]
    if mode not in ("raw_logprobs", "processed_logprobs"):
        return Reading(meant, None, tuple(evidence), reason=f"the sampler returns {mode}, no log probabilities")
    if running == STOCK[runner] and all(item.endswith(SOURCES[runner]) for item in sources):
        if binding.backend_id == NATIVE:
            return Reading(meant, NATIVE, tuple(evidence), exercised=exercised)
        return Reading(meant, None, tuple(evidence), reason=_absent(facts, "selected_logprob", running))
    if running == INJECTED[runner]:
        return _injected(facts, "selected_logprob", calls, meant, evidence, exercised)
    return Reading(meant, None, tuple(evidence), reason=f"{' and '.join(running)} are nobody's known backend")


def logprob_option(path: str, facts: Mapping[str, Any], calls: int | None, statements: Statements) -> Reading:
    """Return what became of an option of the selected_logprob that lives in the worker. calls: as logprob_reading."""
    backend = facts["operators"].get(SELECTED)
    if backend is None:
        return Reading(
            None, None, (), reason="no selected_logprob was put into this worker, which could take an option"
        )
    return option_reading(path, backend, facts["operator_options"][SELECTED], statements, calls)


def layer_reading(
    operation: str, facts: Mapping[str, Any], calls: int | None, binding: OperatorBinding, exercised: Exercised
) -> Reading:
    """Return what computes `operation` in the live layers, all of which must agree."""
    types = dict(facts["layers"].get(operation, {}))
    own, meant = LAYERS[operation][0], binding.backend_id
    evidence = [state(f"types of the live {operation} layers", types)]
    if not types:
        return Reading(meant, None, tuple(evidence), reason=f"the model has no {operation} layer that anybody knows")
    ours = [name for name in types if name.startswith(OURS)]
    if ours and len(ours) == len(types):
        return _injected(facts, operation, calls, meant, evidence, exercised)
    if ours or not all(name.startswith("vllm.") for name in types):
        return Reading(meant, None, tuple(evidence), reason=f"the {operation} layers are of several kinds: {types}")
    if meant == own:
        return Reading(meant, own, tuple(evidence), exercised=exercised)
    return Reading(meant, None, tuple(evidence), reason=_absent(facts, operation, tuple(types)))


def _injected(
    facts: Mapping[str, Any],
    operation: str,
    calls: int | None,
    meant: Value,
    evidence: list[Any],
    exercised: Exercised,
) -> Reading:
    backend = facts["operators"].get(operation)
    if calls is not None:
        evidence.insert(0, execution("calls of the injected operator since the score began", calls))
    if calls == 0:
        return Reading(meant, None, tuple(evidence), reason="the injected operator is in place and was never called")
    return Reading(meant, backend, tuple(evidence), exercised=exercised)


def _absent(facts: Mapping[str, Any], operation: str, running: tuple[str, ...]) -> str:
    if operation not in facts["operators"]:
        allowed = facts["plugins"]
        told = f"VLLM_PLUGINS is {allowed!r}" if allowed is not None else "its entry point did not run"
        return f"the plugin of xcfg-vllm is not active in this worker ({told}); {', '.join(running)} runs"
    return f"the operator was registered and {', '.join(running)} runs all the same"

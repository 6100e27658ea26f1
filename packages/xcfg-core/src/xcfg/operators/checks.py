"""The ordered checks of a resolution. Each looks at one backend and one request and says in words what it saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from xcfg.operators.options import option_faults
from xcfg.schema.operators import OperatorBackendDescriptor, OperatorChoice, ResolutionDecision

POLICIES = ("production", "reference", "deterministic")
POLICY_PROPERTIES = {"deterministic": ("run-to-run",)}
"""Policy -> properties that its backend must declare, or the name of the policy would promise too much."""


@dataclass(frozen=True)
class ResolutionContext:
    """Where a backend would run on one side.

    device: `cpu`, `cuda` or `cuda:0`. dtype: of the logits or inputs, canonical (`bfloat16`). topology: dimension
    name -> size, e.g. {"tensor_parallel_size": 2}. runtime: name. allow_smoke: the command line's flag.
    architecture: of the device (`sm_90`), metadata: names of what the runtime hands the operator beside its
    inputs (`vocab_shard_map`); a backend that requires either is refused where it is not given.
    policies: the policy table of this runtime, used instead of the session's where the sides differ.
    """

    device: str
    dtype: str
    topology: Mapping[str, int]
    runtime: str
    strict: bool
    allow_smoke: bool
    required_properties: tuple[str, ...] = ()
    architecture: str = ""
    metadata: tuple[str, ...] = ()
    policies: Mapping[str, Mapping[str, str]] | None = None


@dataclass(frozen=True)
class Request:
    """All that the checks read beside the descriptor. policy: the policy behind the choice, or empty."""

    side: str
    choice: OperatorChoice
    context: ResolutionContext
    policy: str = ""
    origin: str = field(default="", compare=False)


Check = Callable[[OperatorBackendDescriptor, Request], tuple[bool, str]]


def _listing(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values) or "none"


def _registered(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    return True, f"{descriptor.backend_id} version {descriptor.version} by {request.origin or 'unknown origin'}"


def _target(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    return request.side in descriptor.targets, f"side {request.side}; it serves {_listing(descriptor.targets)}"


def _runtime(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    name = request.context.runtime
    exists = not descriptor.runtimes or name in descriptor.runtimes
    return exists, f"runtime {name}; it exists in {_listing(descriptor.runtimes or ('every runtime',))}"


def _smoke(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    if not descriptor.smoke_only:
        return True, "no smoke backend"
    named = request.context.runtime in descriptor.runtimes
    allowed = request.context.allow_smoke
    flag = "--allow-smoke-operators was given" if allowed else "--allow-smoke-operators was not given"
    return named and allowed, f"smoke backend of {_listing(descriptor.runtimes)}; {flag}"


def _device(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    kind = request.context.device.partition(":")[0]
    detail = f"device {kind}; it runs on {_listing(descriptor.devices)}"
    fits = kind in descriptor.devices
    if descriptor.architectures:
        found = request.context.architecture
        detail += f"; architecture {found or 'not given'}, it needs {_listing(descriptor.architectures)}"
        fits = fits and found in descriptor.architectures
    return fits, detail


def _dtype(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    dtype = request.context.dtype
    return dtype in descriptor.dtypes, f"dtype {dtype}; it takes {_listing(descriptor.dtypes)}"


def _topology(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    required = descriptor.topologies.get(request.side, {})
    given = request.context.topology
    wrong = {name: size for name, size in required.items() if given.get(name) != size}
    missing = [name for name in descriptor.required_metadata if name not in request.context.metadata]
    needs = _listing(f"{name}={size}" for name, size in required.items())
    detail = f"it requires {needs}; given {_listing(f'{name}={size}' for name, size in given.items())}"
    if descriptor.required_metadata:
        detail += f"; metadata required {_listing(descriptor.required_metadata)}, not given {_listing(missing)}"
    return not wrong and not missing, detail


def _properties(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    wanted = (*request.context.required_properties, *POLICY_PROPERTIES.get(request.policy, ()))
    missing = [name for name in dict.fromkeys(wanted) if name not in descriptor.properties]
    detail = f"declared {_listing(descriptor.properties)}; required {_listing(dict.fromkeys(wanted))}"
    return not missing, detail


def _observability(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    if descriptor.observable:
        return True, "an engine can show that it ran"
    return not request.context.strict, "no engine can show that it ran" + _mode(request)


def _fallback(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    fits = descriptor.fallback == "error" or not request.context.strict
    return fits, f"fallback policy {descriptor.fallback}" + _mode(request)


def _mode(request: Request) -> str:
    return "; the case is strict" if request.context.strict else "; the case is not strict"


def _options(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    faults = option_faults(descriptor.options, request.choice.options)
    if faults:
        return False, "; ".join(faults)
    return True, f"options {_listing(f'{name}={value!r}' for name, value in request.choice.options.items())}"


def _diagnostic(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[bool, str]:
    if not descriptor.diagnostic_only:
        return True, "not diagnostic-only"
    return request.policy != "production", "diagnostic-only, never selectable as the policy production"


CHECKS: tuple[tuple[str, Check], ...] = (
    ("registered", _registered),
    ("target", _target),
    ("runtime", _runtime),
    ("smoke permission", _smoke),
    ("device", _device),
    ("dtype", _dtype),
    ("topology", _topology),
    ("properties", _properties),
    ("observability", _observability),
    ("fallback policy", _fallback),
    ("options", _options),
    ("diagnostic-only", _diagnostic),
)
"""In the order in which a trace lists them."""


def decide(descriptor: OperatorBackendDescriptor, request: Request) -> tuple[ResolutionDecision, ...]:
    """Return one decision per check, in order. A refusal does not hide the refusals after it."""
    return tuple(_decision(name, *check(descriptor, request)) for name, check in CHECKS)


def _decision(name: str, ok: bool, detail: str) -> ResolutionDecision:
    return ResolutionDecision(check=name, ok=ok, detail=detail)

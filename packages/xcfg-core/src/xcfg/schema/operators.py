"""Semantic operators: what a backend declares, and what it was resolved to."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record, Value
from xcfg.schema.knobs import Domain
from xcfg.schema.names import Lifecycle


class OptionDefinition(Record):
    """An option of one backend, set where an experiment names it: `{"backend": ID, "options": {NAME: VALUE}}`."""

    name: str
    domain: Domain
    default: Value = None
    summary: str = ""


class OperatorBackendDescriptor(Record):
    """One backend of one semantic operator.

    targets: sides it may serve. devices: torch device types. dtypes: input dtypes.
    topologies: per side the exact topology values it needs, e.g. {"training": {"tensor_parallel_size": 1}}.
    properties: run-to-run | batch-invariant | tp-invariant | bitwise-equal-to:<id>.
    factory: `module:attr`, called with the options as keywords, returns the callable.
    fallback: error | declared | runtime_managed. runtimes: names of the runtimes it exists in (empty: all).
    observable: whether an engine can show that it ran. diagnostic_only: never selectable as production.
    """

    operation: str
    backend_id: str
    summary: str
    factory: str
    targets: tuple[str, ...] = ("rollout", "training", "reference")
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32", "float64")
    topologies: dict[str, dict[str, int]] = {}
    architectures: tuple[str, ...] = ()
    shapes: str = ""
    collectives: tuple[str, ...] = ()
    required_metadata: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    lifecycle: Lifecycle = Lifecycle.ENGINE_CONSTRUCTION
    version: str = "1"
    build_fingerprint: str = ""
    fallback: str = "error"
    options: tuple[OptionDefinition, ...] = ()
    aliases: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    smoke_only: bool = False
    diagnostic_only: bool = False
    observable: bool = True


class OperatorChoice(Record):
    """What an experiment asks for on one side: a backend id, alias or policy, and options."""

    backend: str
    options: dict[str, Any] = {}


class ResolutionDecision(Record):
    """One step of a resolution: which check, whether it held, and with what values."""

    check: str
    ok: bool
    detail: str


class OperatorBinding(Record):
    """A choice resolved to exactly one backend, with the trace of every decision.

    source_digest: SHA-256 over the Python sources of the package that holds the factory.
    """

    operation: str
    side: str
    requested: str
    backend_id: str
    factory: str
    options: dict[str, Any] = {}
    distribution: str = ""
    distribution_version: str = ""
    version: str = "1"
    build_fingerprint: str = ""
    source_digest: str = ""
    smoke_only: bool = False
    trace: tuple[ResolutionDecision, ...] = ()

"""Runtimes: what an adapter declares, where it wants to run, and what it read back."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record, Value
from xcfg.schema.names import Applied, EvidenceKind, Exercised, Lifecycle


class Capability(Record):
    """Which values of knob `path` a runtime can honour on `side`.

    values: empty means every value of the domain. inherent: `values` is the one value of a knob that the
    engine lacks; it counts as applied with evidence `inherent`.
    """

    path: str
    side: str
    values: tuple[Value, ...] = ()
    inherent: bool = False
    note: str = ""


class Incompatible(Record):
    """Two requirements that no environment can hold at once. reason: why; source: where that was found."""

    package: str
    other: str
    reason: str
    source: str = ""


class RuntimeDescriptor(Record):
    """One runtime, as its plugin declares it.

    arms: side -> arms it can score. forced_replay: rollout_decode is a real token-by-token replay.
    policies: operation -> policy (production, reference, deterministic) -> exact backend id.
    operators: operations that the runtime lets xcfg inject.
    adapter: `module:attr`, a class that implements RuntimeAdapter; imported only in the worker.
    placement: `module:attr`, called in the supervisor as placement(PlacementRequest) -> Placement; light.
    requires: requirement strings of what must be installed (`torch>=2.6`), checked from metadata.
    sources: import packages whose sources enter the scoring key. generates: can make a frozen rollout.
    synthetic: the name of a model without parameters that lives inside the runtime; for it no weights are expected.
    arguments: `module:attr`, called without arguments for the ArgumentTable of the engine; light, imports no engine.
    incompatible: what the engine cannot share an environment with.
    cache: path of the boolean knob that turns on a cache which outlives one request; while it is on, the adapter serves
    `ScoreRequest.cache` and says in `ScoreReport.mechanism["cache"]` what it did. Empty: there is none.
    """

    name: str
    summary: str
    adapter: str
    placement: str
    arms: dict[str, tuple[str, ...]]
    forced_replay: bool = False
    capabilities: tuple[Capability, ...] = ()
    policies: dict[str, dict[str, str]] = {}
    operators: tuple[str, ...] = ("selected_logprob",)
    devices: tuple[str, ...] = ("cpu",)
    requires: tuple[str, ...] = ()
    install_hint: str = ""
    sources: tuple[str, ...] = ()
    generates: bool = False
    synthetic: str = ""
    status: str = "available"
    missing: str = ""
    arguments: str = ""
    incompatible: tuple[Incompatible, ...] = ()
    cache: str = ""


class CheckpointDescriptor(Record):
    """A checkpoint that a package brings: `builtin:NAME`. factory(destination: Path) writes a HF folder."""

    name: str
    summary: str
    factory: str
    version: str = "1"
    requires: tuple[str, ...] = ()
    install_hint: str = ""


class PlacementRequest(Record):
    """What a runtime needs to know to say how one side is launched."""

    side: str
    knobs: dict[str, Value]
    options: dict[str, Any]
    devices: tuple[str, ...]


class Placement(Record):
    """How one side is launched.

    world_size: ranks that must report. processes: how many processes xcfg starts, each with RANK; when it is
    smaller than world_size the process starts or hosts the other ranks itself. env: set before start.
    command: run instead of xcfg's own worker module. unsupported: path -> reason, when it cannot be honoured.
    """

    world_size: int = 1
    processes: int = 1
    env: dict[str, str] = {}
    command: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    unsupported: dict[str, str] = {}


class Evidence(Record):
    """One observation of an actual value. source: the object or counter read; detail: what it said."""

    kind: EvidenceKind
    source: str
    detail: str = ""


class KnobApplication(Record):
    """requested -> materialised -> actual, for one knob on one side and one rank."""

    path: str
    side: str
    rank: int
    requested: Value
    materialized: Value
    actual: Value
    status: Applied
    lifecycle: Lifecycle
    evidence: tuple[Evidence, ...] = ()
    exercised: Exercised = Exercised.UNKNOWN
    numeric_effect: float | None = None
    reason: str = ""


class Fingerprints(Record):
    """Digests by lifecycle; a worker is reused only when all four and the operator bindings are equal."""

    construction: str
    distributed: str
    process: str
    build: str
    bindings: str

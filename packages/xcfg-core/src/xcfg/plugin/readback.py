"""From what an adapter's reader found to the record of a knob: the one place where `applied` is decided.

A reader looks at one live engine and returns a Reading; its status follows from comparing what is there with what was
asked for, never from the reader's own word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xcfg.schema._base import Value
from xcfg.schema.names import Applied, EvidenceKind, Exercised, Lifecycle
from xcfg.schema.runtime import Evidence, KnobApplication

OPERATOR_KNOB = "logp.backend"
"""The knob of the operator `selected_logprob`; every other operator has the path of `operator_path`."""
OPERATORS = "operators."
SELECTED = "selected_logprob"
HEAD = "linear_selected_logprob"
"""The operator in the place of the head and of `selected_logprob`: injected, it leaves neither anything to do."""
ATTENTION = "attention"
"""The operator beside which a side has a knob, `rollout.attention_backend` or `training.attention_backend`."""


def operator_path(operation: str) -> str:
    """Return the path under which an adapter reports what ran as `operation` on its side."""
    return OPERATOR_KNOB if operation == SELECTED else f"{OPERATORS}{operation}"


def attention_path(side: str) -> str:
    """Return the knob of one side that names what its model's own attention runs."""
    return f"{side}.attention_backend"


def is_operator(path: str) -> bool:
    """Whether what runs under `path` is a backend, which is held to what the requested name means in the binding."""
    return path == OPERATOR_KNOB or path.startswith(OPERATORS)


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


def execution(source: str, detail: Any) -> Evidence:
    """Return evidence from calls or counters."""
    return Evidence(kind=EvidenceKind.EXECUTION, source=source, detail=str(detail))


def state(source: str, detail: Any) -> Evidence:
    """Return evidence from live objects."""
    return Evidence(kind=EvidenceKind.STATE, source=source, detail=str(detail))


def application(path: str, requested: Value, reading: Reading, *, side: str, rank: int) -> KnobApplication:
    """Return the record of one reading: applied, fallback where another value runs, unobservable where none was seen.

    A value is the requested one only if it has its type too: 1 is not True.
    """
    wanted = reading.materialized if is_operator(path) else requested
    same = type(reading.actual) is type(wanted) and reading.actual == wanted
    status = Applied.APPLIED if same else Applied.UNOBSERVABLE if reading.actual is None else Applied.FALLBACK
    reason = reading.reason
    if not reason and status is Applied.FALLBACK:
        reason = f"asked for {requested!r}, the engine runs {reading.actual!r}"
    return KnobApplication(
        path=path,
        side=side,
        rank=rank,
        requested=requested,
        materialized=reading.materialized,
        actual=reading.actual,
        status=status,
        lifecycle=reading.lifecycle,
        evidence=reading.evidence,
        exercised=reading.exercised,
        reason=reason,
    )


def unknown(path: str, requested: Value, *, runtime: str, side: str, rank: int) -> KnobApplication:
    """Return the record of a knob that the runtime has no reader for."""
    return KnobApplication(
        path=path,
        side=side,
        rank=rank,
        requested=requested,
        materialized=None,
        actual=None,
        status=Applied.UNSUPPORTED,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        reason=f"the runtime {runtime!r} does not have {path!r}",
    )

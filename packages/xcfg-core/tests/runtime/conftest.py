"""Knob definitions of every lifecycle and target, and applications with any evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xcfg.schema.knobs import IntRange, KnobDefinition
from xcfg.schema.names import Applied, EvidenceKind, Lifecycle, SourceClass, Target
from xcfg.schema.runtime import Evidence, KnobApplication


@pytest.fixture
def knob() -> Callable[..., KnobDefinition]:
    def make(name: str, *, lifecycle: str = "request", targets: str = "both", **more: Any) -> KnobDefinition:
        return KnobDefinition(
            name=name,
            summary="a knob",
            source_class=SourceClass.EXECUTION,
            lifecycle=Lifecycle(lifecycle),
            targets=Target(targets),
            domain=IntRange(),
            **more,
        )

    return make


@pytest.fixture
def application() -> Callable[..., KnobApplication]:
    """application("a", actual, kind="state"): applied, as requested, with one piece of evidence (or none)."""

    def make(path: str, actual: Any = 1, *, kind: str | None = "state", **more: Any) -> KnobApplication:
        facts: dict[str, Any] = {
            "side": "training",
            "rank": 0,
            "requested": actual,
            "materialized": actual,
            "actual": actual,
            "status": Applied.APPLIED,
            "lifecycle": Lifecycle.REQUEST,
            "evidence": (Evidence(kind=EvidenceKind(kind), source="the engine"),) if kind else (),
        }
        return KnobApplication(path=path, **(facts | more))

    return make

"""The same factory, and an adapter that reports every requested value as the actual one."""

from __future__ import annotations

from typing import Any

from xcfg.identity.rollout import Rollout
from xcfg.plugin.protocols import RankContext
from xcfg.schema.codec import evolve
from xcfg.schema.names import Applied, EvidenceKind
from xcfg.schema.runtime import Evidence, KnobApplication
from xcfg.schema.worker import BuildReport, ScoreReport, ScoreRequest, WorkerSpec

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD
from faulty_engines import dropping


def echoed(application: KnobApplication) -> KnobApplication:
    """Return the record with the request in every place, known from the configuration object alone."""
    return evolve(
        application,
        materialized=application.requested,
        actual=application.requested,
        status=Applied.APPLIED,
        reason="",
        evidence=(Evidence(kind=EvidenceKind.CONFIG, source="config object", detail=repr(application.requested)),),
    )


class Adapter(dropping.Adapter):
    """Believes its configuration."""

    def build(self, spec: WorkerSpec, context: RankContext) -> BuildReport:
        report = super().build(spec, context)
        return evolve(report, applications=tuple(map(echoed, report.applications)))

    def score(self, request: ScoreRequest, rollout: Rollout) -> tuple[ScoreReport, dict[str, Any]]:
        report, columns = super().score(request, rollout)
        return evolve(report, applications=tuple(map(echoed, report.applications))), columns

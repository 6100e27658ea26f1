"""The gate between an engine's build and its first request: what was asked for must be what its readback shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from xcfg.errors import ExecutionError
from xcfg.runtime.evidence import judged, latest, requested_of, verdict_of
from xcfg.schema._base import Value
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Status
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.runtime import KnobApplication
from xcfg.schema.worker import BuildReport

Gate = Callable[[tuple[BuildReport, ...]], None]


class EvidenceRefusedError(ExecutionError):
    """A strict case whose engine does not run what was asked for; it ends before it is scored.

    logs: the pool's worker logs by name, filled in by the pool.
    """

    kind = "evidence"
    logs: dict[str, Path]

    def __init__(self, status: Status, reason: str, applications: tuple[KnobApplication, ...]) -> None:
        """Keep the status in which the case ends and the applications that say why."""
        super().__init__(reason)
        self.status, self.applications, self.logs = status, applications, {}


def evidence_gate(
    knobs: Mapping[str, Value],
    bindings: Mapping[str, OperatorBinding],
    side: str,
    definitions: Mapping[str, KnobDefinition],
) -> Gate:
    """Return a check of build reports that raises EvidenceRefusedError for a critical setting that was not applied.

    Only what the build reports about is held to it: request knobs are read back with a score.
    """

    def check(builds: tuple[BuildReport, ...]) -> None:
        reported = latest(item for build in builds for item in build.applications)
        present = {item.path for item in reported}
        owed = {path: value for path, value in requested_of(knobs, bindings).items() if path in present}
        applications = judged(owed, reported, [build.rank for build in builds], side)
        status, reason = verdict_of(applications, definitions)
        if status is not None:
            raise EvidenceRefusedError(status, reason, applications)

    return check

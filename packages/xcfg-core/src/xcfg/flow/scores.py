"""Obtaining side scores: from the store where a sealed one has the same key, otherwise from a worker."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xcfg.artifacts.busy import Busy
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import ScoreFacts, StoredScore
from xcfg.artifacts.tensors import save_pt
from xcfg.errors import (
    ArtifactError,
    ExecutionError,
    IdentityError,
    LaunchError,
    MissingRankError,
    ScoreTimeoutError,
    UsageError,
    WorkerError,
    XcfgError,
)
from xcfg.flow.documents import Applications, Ranks
from xcfg.flow.evidence_gate import EvidenceRefusedError, evidence_gate
from xcfg.flow.options import Event
from xcfg.flow.prepare import ScoreJob
from xcfg.identity.rollout import Rollout
from xcfg.running.launch import LaunchSpec, RawScore
from xcfg.running.order import order_scores
from xcfg.running.pool import WorkerPool
from xcfg.runtime.evidence import judged, latest, requested_of
from xcfg.runtime.merge import merge_ranks
from xcfg.schema.codec import convert, plain, pretty_json
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Status
from xcfg.schema.runtime import KnobApplication
from xcfg.schema.worker import BuildReport, RankRecord, ScoreReport

ERROR_STATUS = {"unsupported": Status.UNSUPPORTED, "identity": Status.INVALID_IDENTITY}


@dataclass(frozen=True)
class SideScore:
    """A sealed side score, read back from the store: what the judge sees."""

    stored: StoredScore
    columns: dict[str, NDArray[np.generic]]
    applications: tuple[KnobApplication, ...]
    builds: tuple[BuildReport, ...]
    reports: tuple[ScoreReport, ...]
    records: tuple[RankRecord, ...]
    replica_disagreements: tuple[dict[str, Any], ...]
    seconds: dict[str, float] = field(default_factory=dict)
    resumed: bool = False

    @property
    def compute_dtype(self) -> str:
        """The compute dtype that every rank observed; empty when a rank saw none or they disagree."""
        seen = {report.compute_dtype for report in self.reports}
        return next(iter(seen)) if len(seen) == 1 else ""


@dataclass(frozen=True)
class ScoreFailure:
    """Why a side score does not exist: a status, a sentence, and the worker logs that were kept."""

    status: Status
    reason: str
    logs: dict[str, Path] = field(default_factory=dict)
    applications: tuple[KnobApplication, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


Outcome = SideScore | ScoreFailure


def read_side_score(stored: StoredScore, *, resumed: bool, seconds: Mapping[str, float] | None = None) -> SideScore:
    """Return a sealed side score with its documents decoded. Raises ArtifactError."""
    columns, _ = stored.tensors("score.pt")
    ranks = convert(stored.json("ranks.json"), Ranks)
    return SideScore(
        stored=stored,
        columns=columns,
        applications=convert(stored.json("applications.json"), Applications).applications,
        builds=ranks.builds,
        reports=ranks.reports,
        records=ranks.records,
        replica_disagreements=ranks.replica_disagreements,
        seconds=dict(seconds or {}),
        resumed=resumed,
    )


class Scorer:
    """Serves outcomes by key; scores what the store lacks, in an order that reuses workers."""

    def __init__(
        self,
        store: Store,
        pool: WorkerPool,
        rollout: Rollout,
        definitions: Mapping[str, KnobDefinition],
        *,
        strict: bool,
        on_event: Callable[[Event], None],
        reuse: bool = True,
        made: set[str] | None = None,
        busy: Busy | None = None,
    ) -> None:
        """Keep what is equal for all scores of a run. busy: its sign, and the view of other runs on the same root.

        reuse: whether what older runs have sealed may serve. made: keys that serve in any case; those scored here join.
        """
        self.store, self.pool, self.rollout, self.definitions = store, pool, rollout, definitions
        self.strict, self.on_event, self.reuse, self.busy = strict, on_event, reuse, busy
        self.made = set() if made is None else made
        self.outcomes: dict[str, Outcome] = {}
        self.rejected: set[str] = set()

    def obtain(
        self,
        jobs: Iterable[ScoreJob],
        on_done: Callable[[ScoreJob], None],
        wanted: Callable[[ScoreJob], bool] = lambda _: True,
    ) -> None:
        """Obtain every distinct job once; `on_done` is called after each, in the order in which they end.

        wanted: asked before a job is scored; what nobody needs any more is left out.
        """
        distinct = {job.key: job for job in jobs}
        waiting = []
        for job in distinct.values():
            found = self.stored(job)
            if found is None:
                waiting.append(job)
                continue
            self.outcomes[job.key] = found
            on_done(job)
        total = len(waiting)
        plain_jobs = [job for job in waiting if job.launch is None]
        launched = order_scores([job for job in waiting if job.launch is not None], _launch, self.pool.keys)
        if launched:  # publishing needs torch here too; its import takes as long as that of the first engine
            threading.Thread(target=_import_torch, name="import-torch").start()
            self.pool.expect(_launch(job) for job in launched)
        pending = [*launched[:1], *plain_jobs, *launched[1:]]
        while pending:
            job = self._next(pending)
            if not wanted(job):
                continue
            if (found := self._meanwhile(job)) is not None:
                self.outcomes[job.key] = found
                on_done(job)
                continue
            self.on_event({"event": "score", "label": job.label, "number": total - len(pending), "total": total})
            self.outcomes[job.key] = outcome = self._score(job)
            if isinstance(outcome, ScoreFailure):
                reason = f"{outcome.status.value}: {outcome.reason.partition(chr(10))[0]}"
                self.on_event({"event": "failed", "label": job.label, "reason": reason})
            on_done(job)

    def _next(self, pending: list[ScoreJob]) -> ScoreJob:
        """Take the first job off `pending` at which no other run is; the first of all where they are at every one.

        So two runs on one root share the work, and none waits: what the other has not ended is scored here as well.
        """
        taken = {other.key for other in self.busy.others()} if self.busy is not None and self.reuse else set()
        free = (index for index, job in enumerate(pending) if job.key not in taken)
        job = pending.pop(next(free, 0))
        if self.busy is not None:
            self.busy.at(job.key, job.label)
        return job

    def _meanwhile(self, job: ScoreJob) -> Outcome | None:
        """Return the score of `job` if another run has sealed it since this one looked."""
        found = None if job.key in self.rejected else self.stored(job)
        if found is not None:
            self.on_event({"event": "taken", "label": job.label, "reason": "another run has scored it meanwhile"})
        return found

    def stored(self, job: ScoreJob) -> Outcome | None:
        """Return the sealed side score of `job`, or None; one that does not read back is reported and ignored."""
        if not self.reuse and job.key not in self.made:
            return None
        stored = self.store.find_score(job.key)
        if stored is None:
            return None
        try:
            return read_side_score(stored, resumed=True)
        except XcfgError as error:
            self.on_event({"event": "rejected", "path": str(stored.path), "reason": error.message})
            self.rejected.add(job.key)  # its seal holds, so the store would hand it out again
            return None

    def _score(self, job: ScoreJob) -> Outcome:
        started = time.monotonic()
        raw: RawScore | None = None
        try:
            if job.launch is None:
                return self._publish_recorded(job)
            gate = evidence_gate(job.knobs, job.bindings, job.side, self.definitions) if self.strict else None
            raw = self.pool.score(job.launch, job.request, check=gate)
            return self._publish(job, raw)
        except EvidenceRefusedError as error:
            return ScoreFailure(error.status, error.message, logs=error.logs, applications=error.applications)
        except (ExecutionError, UsageError, ArtifactError, IdentityError) as error:
            elapsed = {"build": 0.0, "score": time.monotonic() - started}
            logs = getattr(error, "logs", {}) if raw is None else raw.logs
            return ScoreFailure(_status_of(error), str(error), logs=logs, seconds=elapsed)

    def _publish(self, job: ScoreJob, raw: RawScore) -> SideScore:
        active = self.rollout.active
        merged = merge_ranks(raw.reports, raw.columns, active)
        built = (item for build in raw.builds for item in build.applications)
        scored = (item for report in raw.reports for item in report.applications)
        reported = latest((*built, *scored))
        owed = requested_of(job.knobs, job.bindings)
        applications = judged(owed, reported, [report.rank for report in raw.reports], job.side)
        ranks = Ranks(
            builds=raw.builds,
            reports=raw.reports,
            records=merged.records,
            replica_disagreements=merged.replica_disagreements,
        )
        spans = [span for report in raw.reports for span in report.timeline]
        files = _files(job, merged.columns, applications, ranks, {"seconds": raw.seconds, "spans": spans})
        files |= {name: path for name, path in raw.logs.items() if path.exists()}
        return read_side_score(self._put(job, files), resumed=False, seconds=raw.seconds)

    def _publish_recorded(self, job: ScoreJob) -> SideScore:
        columns: dict[str, NDArray[np.generic]] = {
            "selected_logprob": self.rollout.tensors["recorded_logprob"],
            "active": self.rollout.active,
        }
        nobody = Ranks(builds=(), reports=(), records=(), replica_disagreements=())
        files = _files(job, columns, (), nobody, {"seconds": {}, "spans": []})
        return read_side_score(self._put(job, files), resumed=False)

    def _put(self, job: ScoreJob, files: Mapping[str, bytes | Path]) -> StoredScore:
        facts = ScoreFacts(
            key=job.key, arm=job.table, side=job.side, rollout=self.rollout.sha256, environment=plain(job.facts)
        )
        stored = self.store.put_score(facts, files, fresh=not self.reuse or job.key in self.rejected)
        self.made.add(job.key)
        return stored


def _files(
    job: ScoreJob,
    columns: Mapping[str, NDArray[np.generic]],
    applications: tuple[KnobApplication, ...],
    ranks: Ranks,
    timeline: Mapping[str, Any],
) -> dict[str, bytes | Path]:
    """Return the documents of a side score by name; the worker logs lie beside them where a worker ran."""
    return {
        "score.pt": save_pt(columns, {"arm": job.table, "side": job.side, "key": job.key}),
        "applications.json": pretty_json(Applications(applications=applications)),
        "ranks.json": pretty_json(ranks),
        "operators.json": pretty_json(job.bindings),
        "timeline.json": pretty_json(timeline),
    }


def _import_torch() -> None:
    """Import torch beside the build of an engine; where that fails, the first use says so."""
    with contextlib.suppress(Exception):
        importlib.import_module("torch")


def _launch(job: ScoreJob) -> LaunchSpec:
    if job.launch is None:
        raise WorkerError(f"the score {job.label!r} needs no worker")
    return job.launch


def _status_of(error: XcfgError) -> Status:
    named = ERROR_STATUS.get(getattr(error, "error_kind", ""))
    if named is not None:
        return named
    if isinstance(error, ArtifactError):
        return Status.INVALID_ARTIFACT
    if isinstance(error, IdentityError):
        return Status.INVALID_IDENTITY
    if isinstance(error, ScoreTimeoutError):
        return Status.TIMEOUT
    if isinstance(error, LaunchError):
        return Status.LAUNCH_FAILED
    if isinstance(error, MissingRankError):
        return Status.MISSING_RANK
    return Status.WORKER_FAILED

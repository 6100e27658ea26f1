"""Whether a sealed attempt may stand for a case of this run, and if not, which fields differed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xcfg.artifacts.stored import StoredAttempt
from xcfg.errors import XcfgError
from xcfg.flow.recheck import recheck_attempt
from xcfg.flow.record import Recorder
from xcfg.runtime.keys import comparison_key, differences
from xcfg.schema.names import Status

if TYPE_CHECKING:
    from xcfg.flow.prepare import PreparedCase

REUSABLE = (Status.PASS.value, Status.MISMATCH.value, Status.UNSUPPORTED.value)


def resumable(recorder: Recorder, prepared: PreparedCase) -> StoredAttempt | None:
    """Return the newest valid attempt with both keys equal whose comparison recomputes to what it says."""
    found = recorder.store.attempts(prepared.case.case_id)
    scoring = recorder.scoring_key(prepared)
    comparison = comparison_key(recorder.loaded.contract.digest)
    for attempt in found.valid:
        seal = attempt.seal
        if seal.status not in REUSABLE or seal.scoring_key != scoring or seal.comparison_key != comparison:
            continue
        if seal.status == Status.UNSUPPORTED.value:
            return attempt
        if not {*prepared.jobs, *prepared.reference} <= set(seal.scores):
            continue  # an arm beside the verdict's, or its precision budget, could not be scored then; it may be now
        try:
            if not recheck_attempt(attempt, recorder.loaded.rollout, recorder.loaded.contract):
                return attempt
        except XcfgError:
            continue
    return None


def what_differed(recorder: Recorder, prepared: PreparedCase) -> list[str]:
    """Return, for the newest valid attempt that cannot stand for the case, which fields of its scores differ."""
    found = recorder.store.attempts(prepared.case.case_id)
    lines = [f"{rejected.path.name} is ignored: {'; '.join(rejected.reasons)}" for rejected in found.rejected]
    jobs = {job.table: job for job in (*prepared.jobs.values(), *prepared.reference.values())}
    for attempt in found.valid[:1]:
        for table, key in sorted(attempt.seal.scores.items()):
            stored = recorder.store.find_score(key)
            if table in jobs and key != jobs[table].key and stored is not None:
                names = differences(stored.seal.environment, jobs[table].facts)
                lines.append(f"{table} is scored again: {', '.join(names)} differ from {attempt.path.name}")
    return lines

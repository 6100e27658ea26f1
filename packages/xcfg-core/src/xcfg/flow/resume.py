"""Whether a sealed attempt may stand for a case of this run, and if not, which field differed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xcfg.artifacts.stored import StoredAttempt
from xcfg.errors import XcfgError
from xcfg.flow.recheck import recheck_attempt
from xcfg.flow.record import Recorder
from xcfg.runtime.keys import comparison_key
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
        try:
            if not recheck_attempt(attempt, recorder.loaded.rollout, recorder.loaded.contract):
                return attempt
        except XcfgError:
            continue
    return None

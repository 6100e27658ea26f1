"""Whether an attempt says the same as what lies beside it: its plan line, and the side scores that it copied."""

from __future__ import annotations

from typing import Any

from xcfg.artifacts.layout import SCORE_FILE, copy_of
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import StoredAttempt, StoredScore
from xcfg.runtime.keys import score_key

PLANNED = ("case_id", "label", "role", "index", "knobs", "delta", "operators", "runtime_options")
"""Fields of requested.json that are those of the plan line."""


def to_plan(attempt: StoredAttempt, store: Store) -> list[str]:
    """Return where requested.json is not the case as planned, and actual.json not what the ranks reported."""
    requested, faults = _fields(attempt.json("requested.json")), []
    sealed = attempt.seal
    for revision in store.revisions():
        # Slices of one experiment are revisions with equal content and other cases: the seal names the plan line too.
        if revision.experiment_digest != sealed.experiment or revision.lines.get(sealed.case_id) != sealed.plan_line:
            continue
        line = next(line for line in revision.plan() if line["case_id"] == sealed.case_id)
        faults += [
            f"{name} of requested.json is not that of the plan"
            for name in PLANNED
            if requested.get(name) != line.get(name)
        ]
        if requested.get("strict") != revision.record.experiment.get("strict_fallback", requested.get("strict")):
            faults.append("strict of requested.json is not that of the experiment")
        break
    else:
        faults.append("no revision beside it plans it")
    reports = _fields(_fields(attempt.json("identity.json")).get("reports"))
    dtypes = _fields(_fields(attempt.json("actual.json")).get("compute_dtypes"))
    for arm, said in sorted(reports.items()):
        seen = {report.get("compute_dtype", "") for report in said if isinstance(report, dict)}
        if dtypes.get(arm) != (next(iter(seen)) if len(seen) == 1 else ""):
            faults.append(f"the compute dtype of {arm} is not what its ranks reported")
    return faults


def to_score(attempt: StoredAttempt, store: Store, arm: str, key: str) -> list[str]:
    """Return where an attempt says something else of a side score than the side score that it copied.

    A key that was scored again has several; where both gave the same bytes, any of them may be the one.
    """
    lookup, copied = store.scores(key), copy_of(arm, attempt.seal.files)
    beside = [item for item in lookup.valid if not copied or item.seal.files[SCORE_FILE] == attempt.seal.files[copied]]
    told = [_contradictions(attempt, stored, arm, key) for stored in beside]
    if not told or lookup.rejected or [] in told:  # what cannot be read any more is reported where it lies
        return []
    return told[0]


def _contradictions(attempt: StoredAttempt, stored: StoredScore, arm: str, key: str) -> list[str]:
    faults = [] if score_key(stored.seal.environment) == key else [f"the key of {arm} is not that of its own facts"]
    actual, identity = _fields(attempt.json("actual.json")), _fields(attempt.json("identity.json"))
    ranks, applications = _fields(stored.json("ranks.json")), _fields(stored.json("applications.json"))
    pairs = (
        ("applications", _fields(actual.get("applications")).get(arm), applications.get("applications")),
        ("builds", _fields(identity.get("builds")).get(arm), ranks.get("builds")),
        ("reports", _fields(identity.get("reports")).get(arm), ranks.get("reports")),
    )
    return faults + [f"the {name} of {arm} are not those of its side score" for name, mine, its in pairs if mine != its]


def _fields(document: Any) -> dict[str, Any]:
    return document if isinstance(document, dict) else {}

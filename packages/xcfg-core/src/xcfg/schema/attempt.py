"""Seals: what COMPLETE says about a side score and about a case attempt."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record

SCORE_SEAL = "xcfg.score_seal.v1"
CASE_SEAL = "xcfg.case_seal.v1"
EXPERIMENT_RECORD = "xcfg.experiment_record.v1"
RUN_RECORD = "xcfg.run_record.v1"


class ScoreSeal(Record):
    """COMPLETE of scores/<key>/. files: name -> SHA-256. environment: the allow-listed facts behind the key.

    seal: SHA-256 of the canonical JSON of every other field, so that COMPLETE itself cannot rot unseen.
    """

    schema_version: str
    key: str
    arm: str
    side: str
    rollout: str
    files: dict[str, str]
    environment: dict[str, Any]
    created: str
    seal: str = ""


class CaseSeal(Record):
    """COMPLETE of cases/<case>/<attempt>/.

    scores: arm -> key of the side score whose verified copy lies here. scoring_key, comparison_key: the two
    keys of the contract, section 7. experiment, plan_line, contract, rollout: digests.
    """

    schema_version: str
    case_id: str
    attempt_id: str
    status: str
    assessment: str
    files: dict[str, str]
    experiment: str
    plan_line: str
    contract: str
    rollout: str
    scoring_key: str
    comparison_key: str
    scores: dict[str, str]
    created: str
    seal: str = ""


class ExperimentRecord(Record):
    """experiment*.json: one revision of what was asked for. seal: SHA-256 of the canonical rest, as above.

    experiment_digest: what CaseSeal.experiment names. plan_sha256: of the bytes of plan*.jsonl beside it.
    """

    schema_version: str
    revision: int
    experiment: dict[str, Any]
    experiment_digest: str
    identity: dict[str, Any]
    plan_sha256: str
    seal: str = ""


class RunRecord(Record):
    """ended/<digest>.json: what stood for each case when a run ended. The file is named after its content.

    experiment: what CaseSeal.experiment names. cases: case id -> attempt; a case that did not end is left out.
    """

    schema_version: str
    experiment: str
    cases: dict[str, str]


class AttemptCheck(Record):
    """One line of `xcfg verify`. unfinished: a planned case that never ended; nothing says that it was deleted."""

    path: str
    ok: bool
    reasons: tuple[str, ...] = ()
    unfinished: bool = False

"""Seals: what COMPLETE says about a side score and about a case attempt."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record

SCORE_SEAL = "xcfg.score_seal.v1"
CASE_SEAL = "xcfg.case_seal.v1"


class ScoreSeal(Record):
    """COMPLETE of scores/<key>/. files: name -> SHA-256. environment: the allow-listed facts behind the key."""

    schema_version: str
    key: str
    arm: str
    side: str
    rollout: str
    files: dict[str, str]
    environment: dict[str, Any]
    created: str


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


class AttemptCheck(Record):
    """One line of `xcfg verify`."""

    path: str
    ok: bool
    reasons: tuple[str, ...] = ()

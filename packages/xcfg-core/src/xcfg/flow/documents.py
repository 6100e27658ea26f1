"""The documents of one attempt, as they are stored and as the judge reads them: one form for run and verify."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record, Value
from xcfg.schema.names import Tier
from xcfg.schema.runtime import KnobApplication
from xcfg.schema.worker import BuildReport, RankRecord, ScoreReport

REQUESTED = "xcfg.requested.v1"
MATERIALIZED = "xcfg.materialized.v1"
ACTUAL = "xcfg.actual.v1"
IDENTITY = "xcfg.identity.v1"
FAILURE = "xcfg.failure.v1"


class KnobFacts(Record):
    """What the judge needs to know of a knob definition, so that a third party can judge without the plugin."""

    tier: Tier
    critical: bool


class Requested(Record):
    """requested.json: the case as planned."""

    schema_version: str
    case_id: str
    label: str
    role: str
    index: int
    knobs: dict[str, Value]
    delta: dict[str, Any]
    operators: dict[str, Any]
    runtime_options: dict[str, Any]
    definitions: dict[str, KnobFacts]
    strict: bool
    verdict_arm: str
    runtimes: dict[str, str]


class Materialized(Record):
    """materialized.json: what each side was made to be, per arm: launch facts and operator bindings."""

    schema_version: str
    sides: dict[str, Any]


class Actual(Record):
    """actual.json: what each side really was. applications: arm -> judged records of every rank.

    baseline: the same of the baseline case, against which undeclared changes are found. failures: arm -> why it
    has no score; only arms that do not decide the verdict.
    """

    schema_version: str
    applications: dict[str, tuple[KnobApplication, ...]]
    baseline: dict[str, tuple[KnobApplication, ...]]
    compute_dtypes: dict[str, str]
    provenance: dict[str, Any]
    replica_disagreements: dict[str, tuple[dict[str, Any], ...]]
    failures: dict[str, str] = {}


class IdentityDocument(Record):
    """identity.json: what had to be scored, and what every rank attests to.

    expected_weights: compute dtype -> tensor -> digest.
    """

    schema_version: str
    rollout: str
    checkpoint: dict[str, str]
    manifest: dict[str, Any]
    expected_weights: dict[str, dict[str, str]]
    builds: dict[str, tuple[BuildReport, ...]]
    reports: dict[str, tuple[ScoreReport, ...]]


class Failure(Record):
    """failure.json: why an attempt holds no numbers."""

    schema_version: str
    status: str
    reason: str
    arm: str = ""
    details: dict[str, Any] = {}
    applications: tuple[KnobApplication, ...] = ()


class Applications(Record):
    """applications.json of a side score: the judged records of every rank."""

    applications: tuple[KnobApplication, ...]


class Ranks(Record):
    """ranks.json of a side score: what every rank said at build and at score, and who owned which tokens."""

    builds: tuple[BuildReport, ...]
    reports: tuple[ScoreReport, ...]
    records: tuple[RankRecord, ...]
    replica_disagreements: tuple[dict[str, Any], ...]

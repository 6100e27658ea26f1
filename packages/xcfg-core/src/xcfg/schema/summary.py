"""The JSON documents that commands print (contract, section 8)."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record
from xcfg.schema.attempt import AttemptCheck
from xcfg.schema.gradient import GradientSummary
from xcfg.schema.plan import Coverage

RUN_SUMMARY = "xcfg.run_summary.v1"
PLUGINS = "xcfg.plugins.v1"
VERIFY = "xcfg.verify.v1"
ERROR = "xcfg.error.v1"


class EdgeSummary(Record):
    """The figures of one edge that a summary line shows."""

    active_tokens: int
    mismatches: int
    max_abs: float | None
    mean_abs: float | None
    rms: float | None
    p99_abs: float | None
    approx_kl0: float | None


class Seconds(Record):
    """Where the time of a case went; shared side scores count for the case that first needed them."""

    build: float
    score: float
    compare: float


class CaseSummary(Record):
    """One case of a run.

    assessment_reason: why there is no assessment, or what beside it should be known. missing_arms: arm beside the
    verdict's that has no edges -> why. gradients: arm -> its gradient, where a score looked at one; it is not judged.
    """

    case_id: str
    attempt_id: str
    label: str
    status: str
    assessment: str
    reason: str
    resumed: bool
    threshold: float | None
    edges: dict[str, EdgeSummary]
    seconds: Seconds
    assessment_reason: str = ""
    missing_arms: dict[str, str] = {}
    gradients: dict[str, GradientSummary] = {}


class ContractSummary(Record):
    """Which contract judged."""

    source: str
    version: str
    digest: str


class RunSummary(Record):
    """`xcfg run --json` and `xcfg compare --json`."""

    schema_version: str
    experiment_id: str
    exit_code: int
    runtimes: dict[str, str]
    contract: ContractSummary
    cases: tuple[CaseSummary, ...]


class PluginEntry(Record):
    """One plugin as `xcfg plugins list` shows it. status: active | blocked | conflict | incompatible | broken."""

    name: str
    distribution: str
    version: str
    status: str
    reason: str
    provides: dict[str, tuple[str, ...]]


class PluginsSummary(Record):
    """`xcfg plugins list --json`."""

    schema_version: str
    plugins: tuple[PluginEntry, ...]


class PlanCaseLine(Record):
    """One case of `xcfg plan --json`."""

    case_id: str
    label: str
    delta: dict[str, Any]
    issues: tuple[Any, ...]


class PlanSummary(Record):
    """`xcfg plan --json`. coverage: of a covering array, where all of its cases were selected."""

    schema_version: str
    experiment_id: str
    cases: tuple[PlanCaseLine, ...]
    filtered: tuple[Any, ...]
    issues: tuple[Any, ...]
    coverage: Coverage | None = None


class VerifySummary(Record):
    """`xcfg verify --json`."""

    schema_version: str
    attempts: tuple[AttemptCheck, ...]


class ErrorSummary(Record):
    """Any command that fails under `--json`."""

    schema_version: str
    kind: str
    message: str
    hint: str
    exit_code: int

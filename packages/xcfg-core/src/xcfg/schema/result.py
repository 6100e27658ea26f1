"""Results of one comparison: edges, diagnostics, the assessment; all numbers in nats unless said otherwise."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record


class WorstToken(Record):
    """One of the largest |d|; ties go to the lowest sequence, then position."""

    sequence: int
    position: int
    token_id: int
    first: float
    second: float
    difference: float


class GroupStat(Record):
    """The same few figures over one group: a rank, a sequence, a position or probability bucket."""

    group: str
    active_tokens: int
    mismatches: int
    mean_abs: float
    max_abs: float
    bias: float
    rms: float


class EdgeResult(Record):
    """One edge, d = first - second in float64, over its active tokens.

    comparable: false without a threshold; figures may still stand. status: of this edge alone.
    p50 ... p999: linear quantiles of |d|. ratio0: mean exp(d). clipfrac0: share outside the contract's range.
    approx_kl0: mean(exp d - 1 - d). mismatch_kl: mean(-d). chi2: mean(exp(2d)) - 1.
    ess: effective sample size of weights exp(d), as a share. ppl_ratio: exp(mean(-first)) / exp(mean(-second)).
    A diagnostic that overflows is null.
    """

    name: str
    first: str
    second: str
    status: str
    comparable: bool
    reason: str = ""
    compute_dtype: str = ""
    threshold: float | None = None
    active_tokens: int = 0
    mismatches: int = 0
    mismatch_ratio: float | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    bias: float | None = None
    rms: float | None = None
    p50_abs: float | None = None
    p90_abs: float | None = None
    p95_abs: float | None = None
    p99_abs: float | None = None
    p999_abs: float | None = None
    ratio0: float | None = None
    clipfrac0: float | None = None
    approx_kl0: float | None = None
    mismatch_kl: float | None = None
    chi2: float | None = None
    ess: float | None = None
    ppl_ratio: float | None = None
    pearson: float | None = None
    worst: tuple[WorstToken, ...] = ()
    by_rank: tuple[GroupStat, ...] = ()
    by_sequence: tuple[GroupStat, ...] = ()
    by_position: tuple[GroupStat, ...] = ()
    by_probability: tuple[GroupStat, ...] = ()
    aliases: dict[str, float | None] = {}


class Interval(Record):
    """An estimate with its cluster-bootstrap interval over sequences."""

    value: float
    low: float
    high: float


BUDGET_PAGE = "docs/explanation/precision-budget.md"
"""The page that explains the figures of an AssessmentResult, for whoever prints them."""


class AssessmentResult(Record):
    """The precision budget (contract, section 4). b_*: rms error of plain implementations in that dtype."""

    assessment: str
    reason: str = ""
    r_training: Interval | None = None
    r_rollout: Interval | None = None
    r_gap: Interval | None = None
    bias: Interval | None = None
    b_training: float | None = None
    b_rollout: float | None = None
    reference_dtype: str = ""
    sequences: int = 0
    tokens: int = 0


class Comparison(Record):
    """comparison.json: the whole judgement of one case.

    missing_arms: arm without edges that does not decide the verdict -> why. unattested: what a foreign dump says
    nothing about.
    """

    schema_version: str
    status: str
    reason: str
    verdict_edge: str
    verdict_arm: str
    threshold: float | None
    edges: dict[str, EdgeResult]
    assessment: AssessmentResult
    identity_errors: tuple[str, ...] = ()
    artifact_errors: tuple[str, ...] = ()
    coupled_changes: tuple[dict[str, Any], ...] = ()
    undeclared_differences: tuple[dict[str, Any], ...] = ()
    missing_arms: dict[str, str] = {}
    replica_disagreements: tuple[dict[str, Any], ...] = ()
    unattested: tuple[str, ...] = ()
    contract: dict[str, str] = {}


COMPARISON_SCHEMA = "xcfg.comparison.v1"

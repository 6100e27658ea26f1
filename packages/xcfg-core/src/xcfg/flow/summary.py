"""The run summary (`xcfg.run_summary.v1`) from sealed attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xcfg.artifacts.stored import StoredAttempt
from xcfg.flow.documents import Actual, Failure
from xcfg.flow.inputs import Loaded
from xcfg.flow.options import RunOptions
from xcfg.flow.prepare import PreparedCase
from xcfg.flow.recheck import decode
from xcfg.schema.gradient import GradientSummary, gradient_of
from xcfg.schema.names import Assessment, Status, exit_code
from xcfg.schema.plan import ExperimentCase
from xcfg.schema.result import Comparison, EdgeResult
from xcfg.schema.summary import (
    RUN_SUMMARY,
    CaseSummary,
    ContractSummary,
    EdgeSummary,
    RunSummary,
    Seconds,
)


def case_summary(
    case: ExperimentCase,
    attempt: StoredAttempt,
    *,
    resumed: bool,
    reason: str = "",
    seconds: Mapping[str, float],
) -> CaseSummary:
    """Return the summary line of a sealed attempt; the figures are read back from what was sealed."""
    comparison = _comparison(attempt)
    if comparison is None and not reason:
        reason = decode(attempt, "failure.json", Failure).reason
    return CaseSummary(
        case_id=case.case_id,
        attempt_id=attempt.seal.attempt_id,
        label=case.label,
        status=attempt.seal.status,
        assessment=attempt.seal.assessment or Assessment.NO_REFERENCE.value,
        reason=comparison.reason if comparison is not None else reason,
        resumed=resumed,
        threshold=comparison.threshold if comparison is not None else None,
        edges={name: edge_summary(edge) for name, edge in comparison.edges.items()} if comparison is not None else {},
        assessment_reason=comparison.assessment.reason if comparison is not None and comparison.edges else "",
        missing_arms=comparison.missing_arms if comparison is not None else {},
        gradients=gradients(decode(attempt, "actual.json", Actual)) if "actual.json" in attempt.seal.files else {},
        seconds=Seconds(
            build=seconds.get("build", 0.0), score=seconds.get("score", 0.0), compare=seconds.get("compare", 0.0)
        ),
    )


def edge_summary(edge: EdgeResult) -> EdgeSummary:
    """Return the figures of one edge that a summary shows."""
    return EdgeSummary(
        active_tokens=edge.active_tokens,
        mismatches=edge.mismatches,
        max_abs=edge.max_abs,
        mean_abs=edge.mean_abs,
        rms=edge.rms,
        p99_abs=edge.p99_abs,
        approx_kl0=edge.approx_kl0,
    )


def gradients(actual: Actual) -> dict[str, GradientSummary]:
    """Return arm -> the gradient that its ranks looked at."""
    found = {arm: gradient_of(facts.get("mechanism", ())) for arm, facts in actual.provenance.items()}
    return {arm: item for arm, item in found.items() if item is not None}


def _comparison(attempt: StoredAttempt) -> Comparison | None:
    return decode(attempt, "comparison.json", Comparison) if "comparison.json" in attempt.seal.files else None


def run_summary(
    loaded: Loaded,
    options: RunOptions,
    prepared: Sequence[PreparedCase],
    summaries: Mapping[str, CaseSummary],
    *,
    interrupted: bool,
) -> RunSummary:
    """Return the document; cases that never ended are CANCELLED, which is never a pass."""
    cases = tuple(summaries.get(item.case.case_id) or _cancelled(item.case) for item in prepared)
    return RunSummary(
        schema_version=RUN_SUMMARY,
        experiment_id=loaded.experiment.experiment_id,
        exit_code=exit_code([Status(case.status) for case in cases], interrupted=interrupted),
        runtimes={"rollout": options.rollout, "training": options.training},
        contract=contract_summary(loaded),
        cases=cases,
    )


def contract_summary(loaded: Loaded) -> ContractSummary:
    """Return which contract judges."""
    ref = loaded.contract.ref
    return ContractSummary(source=ref.source, version=ref.version, digest=ref.digest)


def unstored_summary(case: ExperimentCase, reason: str) -> CaseSummary:
    """Return the line of a case whose attempt the store refused: nothing of it is kept, so nothing is claimed."""
    return _without_attempt(case, Status.INVALID_ARTIFACT, reason)


def _cancelled(case: ExperimentCase) -> CaseSummary:
    reason = "the run was interrupted before this case ended; run the same command again to go on"
    return _without_attempt(case, Status.CANCELLED, reason)


def _without_attempt(case: ExperimentCase, status: Status, reason: str) -> CaseSummary:
    return CaseSummary(
        case_id=case.case_id,
        attempt_id="",
        label=case.label,
        status=status.value,
        assessment=Assessment.NO_REFERENCE.value,
        reason=reason,
        resumed=False,
        threshold=None,
        edges={},
        seconds=Seconds(build=0.0, score=0.0, compare=0.0),
    )

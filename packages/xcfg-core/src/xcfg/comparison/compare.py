"""The comparison of one case: the rule on one edge, figures on every edge, the assessment beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from xcfg.comparison.assessment import assess, no_reference
from xcfg.comparison.budget import reference_key
from xcfg.comparison.edges import RECORDED, ROLLOUT_ARMS, TRAINING, VERDICT_EDGE, Edge, plan_edges
from xcfg.comparison.layout import Layout, layout_of
from xcfg.comparison.measure import Measured, measure, unmeasured
from xcfg.comparison.tables import ScoreTable, above_zero, recorded_table, structural_faults
from xcfg.errors import UnknownNameError, did_you_mean
from xcfg.identity.rollout import Rollout
from xcfg.schema.codec import evolve
from xcfg.schema.contract import Contract
from xcfg.schema.names import Arm, Status
from xcfg.schema.result import COMPARISON_SCHEMA, AssessmentResult, Comparison

ARMS = (TRAINING, *ROLLOUT_ARMS)


@dataclass(frozen=True)
class CompareOutcome:
    """The judgement, and the arrays behind it.

    token_diffs: per edge, over T tokens: `<edge>.first` and `.second` (as stored), `.mask` (bool, the tokens
    of the edge), `.mismatch` (bool) and `.difference` (float64, NaN outside the mask).
    """

    comparison: Comparison
    token_diffs: dict[str, NDArray[Any]]


def compare(
    tables: Mapping[str, ScoreTable],
    rollout: Rollout,
    contract: Contract,
    *,
    verdict_arm: str,
    reference: Mapping[str, ScoreTable] | None = None,
) -> CompareOutcome:
    """Return the judgement of the scores in `tables` (arm -> table) of one frozen rollout.

    mismatch = active & (|training - rollout| > threshold), strictly greater, in float64 from the stored
    values, on the edge of training against `verdict_arm`; no other edge's difference and no figure changes the
    status. An arm whose scores are no log probabilities does: such a case is INVALID_ARTIFACT, whoever decides.
    reference: tables of the precision budget by key (see budget.py). Scores recorded in the rollout make the
    arm `recorded` unless `tables` brings it. Raises UnknownNameError for an arm that does not exist.
    """
    _check_arms([*tables, verdict_arm], verdict_arm)
    if rollout.sequence_count == 0:
        return _without_edges(Status.EMPTY_JOIN, "the two sides have no token in common", verdict_arm, contract)
    known = dict(tables)
    recorded = recorded_table(rollout)
    if RECORDED not in known and recorded is not None:
        known[RECORDED] = recorded
    for arm, status in ((TRAINING, Status.INVALID_ARTIFACT), (verdict_arm, Status.UNSUPPORTED)):
        if arm not in known:
            return _without_edges(status, f"there are no scores of the arm {arm!r}", verdict_arm, contract)
    faults = {
        arm: structural_faults(table, rollout, subset=arm == RECORDED and verdict_arm != RECORDED)
        for arm, table in known.items()
    }
    precise = _reference(known, dict(reference or {}), verdict_arm)
    if precise is not None:
        faults[precise.arm] = structural_faults(precise, rollout, subset=True)
    layout = layout_of(rollout)
    edges = list(plan_edges(known, precise, rollout, contract, verdict_arm, faults))
    measured = _measure_all(edges, layout, contract)
    verdict = edges[0]
    assessment = (
        _assessed(verdict, reference or {}, layout, contract)
        if verdict.measurable and measured[VERDICT_EDGE].result.max_abs is not None
        else no_reference(f"the verdict edge has no figures: {verdict.reason}")
    )
    return _outcome(edges, measured, assessment, verdict_arm, contract)


def _assessed(
    verdict: Edge, reference: Mapping[str, ScoreTable], layout: Layout, contract: Contract
) -> AssessmentResult:
    """Return the assessment; none where a table of the reference holds no log probabilities."""
    whole = (table for table in reference.values() if table.active.shape == table.logprob.shape)
    spoilt = [text for text in (above_zero(table, table.active) for table in whole) if text]
    if spoilt:
        return no_reference("; ".join(spoilt))
    return assess(verdict.first, verdict.second, reference, layout, contract.assessment)


def _check_arms(arms: list[str], verdict_arm: str) -> None:
    for arm in arms:
        if arm not in ARMS:
            raise UnknownNameError(f"there is no arm {arm!r}", hint=did_you_mean(arm, ARMS))
    if verdict_arm not in ROLLOUT_ARMS:
        raise UnknownNameError(f"{verdict_arm!r} is no verdict arm", hint=f"Available: {', '.join(ROLLOUT_ARMS)}.")


def _reference(
    tables: Mapping[str, ScoreTable], reference: Mapping[str, ScoreTable], verdict_arm: str
) -> ScoreTable | None:
    """Return the table of the edges against the reference, under the arm name `reference`."""
    key = reference_key(reference, (tables[TRAINING].compute_dtype, tables[verdict_arm].compute_dtype))
    if key is None:
        return None
    table = reference[key]
    return ScoreTable(
        arm=Arm.REFERENCE.value,
        compute_dtype=table.compute_dtype or key.partition(":")[2],
        logprob=table.logprob,
        active=table.active,
        columns=table.columns,
        owner_rank=table.owner_rank,
    )


def _measure_all(edges: list[Edge], layout: Layout, contract: Contract) -> dict[str, Measured]:
    """Return the figures by edge; an edge of the same two arms and tokens as the verdict is measured once."""
    found: dict[str, Measured] = {}
    for edge in edges:
        twin = edges[0] if edge is not edges[0] and edge.first is edges[0].first else None
        if twin is not None and edge.second is twin.second and edge.status is twin.status:
            copy = found[twin.name]
            result = evolve(copy.result, name=edge.name)
            found[edge.name] = Measured(result, copy.mismatch, copy.difference)
        else:
            found[edge.name] = measure(edge, layout, contract) if edge.measurable else unmeasured(edge)
    return found


def _outcome(
    edges: list[Edge],
    measured: Mapping[str, Measured],
    assessment: AssessmentResult,
    verdict_arm: str,
    contract: Contract,
) -> CompareOutcome:
    verdict = measured[VERDICT_EDGE].result
    diffs: dict[str, NDArray[Any]] = {}
    for edge in edges:
        item = measured[edge.name]
        diffs[f"{edge.name}.first"] = edge.first.logprob
        diffs[f"{edge.name}.second"] = edge.second.logprob
        diffs[f"{edge.name}.mask"] = edge.mask
        diffs[f"{edge.name}.mismatch"] = item.mismatch
        diffs[f"{edge.name}.difference"] = item.difference
    status, reason = _case(measured)
    comparison = Comparison(
        schema_version=COMPARISON_SCHEMA,
        status=status,
        reason=reason,
        verdict_edge=VERDICT_EDGE,
        verdict_arm=verdict_arm,
        threshold=verdict.threshold,
        edges={name: item.result for name, item in measured.items()},
        assessment=assessment,
        artifact_errors=_invalid(measured.values()),
        contract={"source": contract.source, "version": contract.version, "digest": contract.digest},
    )
    return CompareOutcome(comparison, diffs)


def _case(measured: Mapping[str, Measured]) -> tuple[str, str]:
    """Return status and reason of the case: the verdict edge's, unless an arm of the case is no artifact to judge.

    An invalid artifact is a fault of an arm and of no edge, and never a pass (contract, section 4). The reference is
    no arm of the case: where it is spoilt there is no assessment.
    """
    verdict = measured[VERDICT_EDGE].result
    spoilt = _invalid(item for item in measured.values() if item.result.second != Arm.REFERENCE.value)
    if spoilt and verdict.status in (Status.PASS.value, Status.MISMATCH.value):
        return Status.INVALID_ARTIFACT.value, "; ".join(spoilt)
    said = _says(verdict.status, verdict.mismatches, verdict.active_tokens, verdict.threshold)
    return verdict.status, verdict.reason or said


def _invalid(edges: Iterable[Measured]) -> tuple[str, ...]:
    """Return the reasons of the edges that have an invalid artifact, each once."""
    invalid = Status.INVALID_ARTIFACT.value
    return tuple(dict.fromkeys(item.result.reason for item in edges if item.result.status == invalid))


def _says(status: str, mismatches: int, tokens: int, threshold: float | None) -> str:
    if status == Status.MISMATCH.value:
        return f"{mismatches} of {tokens} active tokens differ by more than {threshold:g} nats"
    return ""


def _without_edges(status: Status, reason: str, verdict_arm: str, contract: Contract) -> CompareOutcome:
    comparison = Comparison(
        schema_version=COMPARISON_SCHEMA,
        status=status.value,
        reason=reason,
        verdict_edge=VERDICT_EDGE,
        verdict_arm=verdict_arm,
        threshold=None,
        edges={},
        assessment=no_reference(reason),
        contract={"source": contract.source, "version": contract.version, "digest": contract.digest},
    )
    return CompareOutcome(comparison, {})

"""The judgement of one case from its stored documents alone; run and verify call the same function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xcfg.comparison import (
    CompareOutcome,
    ScoreTable,
    compare,
    coupled_changes,
    decode_errors,
    determinism_differences,
    identity_errors,
    vocabulary_differences,
)
from xcfg.contract import Contract
from xcfg.errors import ArtifactError
from xcfg.flow.documents import Actual, IdentityDocument, Requested
from xcfg.identity.rollout import Rollout
from xcfg.plugin.readback import ATTENTION, HEAD, OPERATOR_KNOB, attention_path, is_operator, operator_path
from xcfg.runtime.evidence import ENDS_AS, ORDER
from xcfg.schema.codec import evolve
from xcfg.schema.names import Applied, Arm, Assessment, Status
from xcfg.schema.result import COMPARISON_SCHEMA, AssessmentResult, Comparison
from xcfg.schema.runtime import KnobApplication

Columns = Mapping[str, NDArray[np.generic]]
BUDGET = "plain_"
PRECISE = {"plain_eager_float32": "float32", "plain_eager_float64": "float64"}
"""Tables that also serve as the reference: eager attention is the formula itself, in a dtype that is wide enough."""
SCORED_ARMS = (Arm.TRAINING.value, Arm.ROLLOUT_PREFILL.value, Arm.ROLLOUT_DECODE.value)


@dataclass(frozen=True)
class Judgement:
    """The comparison, and the per-token arrays that go into token_diffs.pt."""

    comparison: Comparison
    token_diffs: dict[str, NDArray[np.generic]]


def judge(
    requested: Requested,
    actual: Actual,
    identity: IdentityDocument,
    scores: Mapping[str, Columns],
    rollout: Rollout,
    contract: Contract,
) -> Judgement:
    """Return the judgement of a case whose arms (and reference tables) lie in `scores`, by name.

    Order: settings that are not what was asked for, then identity, then numbers, then undeclared differences.
    Only training and the verdict arm decide; what another arm differs by, or did not get to score, costs its own edges
    (contract, section 3). Scores that are no log probabilities are no pass in any arm (section 4; compare.py).
    """
    deciding = deciding_arms(requested.verdict_arm)
    status, reason = _evidence(requested, actual, deciding)
    if status is not None and requested.strict:
        return _without_numbers(requested, contract, status, reason)
    errors = _identity(identity, actual, scores, rollout)
    broken = tuple(text for arm in deciding for text in errors.get(arm, ()))
    if broken:
        why = "; ".join(broken[:3]) + (f"; and {len(broken) - 3} more" if len(broken) > 3 else "")
        return _without_numbers(requested, contract, Status.INVALID_IDENTITY, why, broken)
    missing = dict(actual.failures)
    for arm in (name for name in SCORED_ARMS if name not in deciding):
        unfit, why = _evidence(requested, actual, (arm,))
        if arm in errors or (unfit is not None and requested.strict):
            missing[arm] = errors[arm][0] if arm in errors else f"{unfit.value if unfit else ''}: {why}"
    usable = {arm: columns for arm, columns in scores.items() if arm not in errors and arm not in missing}
    outcome = _numbers(requested, actual, usable, rollout, contract, errors)
    training, other = (identity.reports.get(arm, ()) for arm in deciding)
    vocabulary = vocabulary_differences(training, other, requested.knobs)
    flags = determinism_differences(
        {"training": training, "rollout": other}, requested.knobs, requested.runtime_options, set(requested.delta)
    )
    return _finish(requested, actual, outcome, (status, reason), missing, (vocabulary, flags))


def deciding_arms(verdict_arm: str) -> tuple[str, str]:
    """Return the two arms of the verdict edge: no difference of another arm changes a status."""
    return (Arm.TRAINING.value, verdict_arm)


def _evidence(requested: Requested, actual: Actual, arms: Sequence[str]) -> tuple[Status | None, str]:
    faults: list[KnobApplication] = [
        item
        for arm in arms
        for item in actual.applications.get(arm, ())
        if item.status is not Applied.APPLIED and _critical(item.path, requested)
    ]
    if not faults:
        return None, ""
    worst = min(faults, key=lambda item: (ORDER.index(item.status), item.path, item.rank))
    names = sorted({f"{item.path} on {item.side}" for item in faults if item.status is worst.status})
    return ENDS_AS[worst.status], f"{', '.join(names)}: {worst.reason or worst.status.value}"


def _critical(path: str, requested: Requested) -> bool:
    """Whether a knob, or an operator, ends a case that it was not applied to."""
    if path in requested.definitions:
        return requested.definitions[path].critical
    return is_operator(path)


def _plain_errors(table: str, observed: str, actual: Actual) -> list[str]:
    """Return why a score cannot stand for plain rounding: it must have run as its name says."""
    wanted = table.rpartition("_")[2]
    errors = [] if observed == wanted else [f"computed in {observed or 'an unobserved dtype'}, not {wanted}"]
    faults = [item for item in actual.applications.get(table, ()) if item.status is not Applied.APPLIED]
    return errors + [f"{item.path} is {item.status.value}" for item in faults[:1]]


def _identity(
    identity: IdentityDocument, actual: Actual, scores: Mapping[str, Columns], rollout: Rollout
) -> dict[str, tuple[str, ...]]:
    """Return the identity errors per arm; `recorded` carries no attestation of its own."""
    found: dict[str, tuple[str, ...]] = {}
    training = identity.reports.get(Arm.TRAINING.value, ())
    for arm in scores:
        if arm == Arm.RECORDED.value:
            continue
        builds, reports = identity.builds.get(arm, ()), identity.reports.get(arm, ())
        dtypes = {build.weights.dtype for build in builds if build.weights is not None}
        expected = identity.expected_weights.get(next(iter(dtypes))) if len(dtypes) == 1 else None
        errors = identity_errors(
            rollout, expected_weights=expected, build_reports=builds, score_reports=reports, transforms_of=training
        )
        if arm == Arm.ROLLOUT_DECODE.value:
            errors += decode_errors(rollout, scores[arm], reports)
        observed = actual.compute_dtypes.get(arm, "")
        if dtypes and observed and dtypes != {observed}:
            errors.append(f"weights are attested in {', '.join(sorted(dtypes))}, the engine computes in {observed}")
        if arm.startswith(BUDGET):
            errors += _plain_errors(arm, observed, actual)
        if errors:
            found[arm] = tuple(f"{arm}: {text}" for text in errors)
    return found


def _numbers(
    requested: Requested,
    actual: Actual,
    scores: Mapping[str, Columns],
    rollout: Rollout,
    contract: Contract,
    errors: Mapping[str, tuple[str, ...]],
) -> CompareOutcome:
    arms, budget = tables_of(scores, actual)
    outcome = compare(arms, rollout, contract, verdict_arm=requested.verdict_arm, reference=budget)
    lost = sorted(name for name in errors if name.startswith(BUDGET))
    if lost and outcome.comparison.assessment.assessment == Assessment.NO_REFERENCE.value:
        why = f"{', '.join(lost)} did not pass the identity gate: {errors[lost[0]][0]}"
        lacking = evolve(outcome.comparison.assessment, reason=why)
        return CompareOutcome(evolve(outcome.comparison, assessment=lacking), outcome.token_diffs)
    return outcome


def tables_of(scores: Mapping[str, Columns], actual: Actual) -> tuple[dict[str, ScoreTable], dict[str, ScoreTable]]:
    """Return the arms by name, and the tables of the precision budget by the keys of comparison/budget.py."""
    tables = {arm: table(arm, columns, actual.compute_dtypes.get(arm, "")) for arm, columns in scores.items()}
    budget = {name.replace("_", ":"): item for name, item in tables.items() if name.startswith(BUDGET)}
    budget |= {f"reference:{dtype}": tables[name] for name, dtype in PRECISE.items() if name in tables}
    return {name: item for name, item in tables.items() if not name.startswith(BUDGET)}, budget


def table(arm: str, columns: Columns, compute_dtype: str) -> ScoreTable:
    """Return the columns of one side score as the comparator takes them. Raises ArtifactError without the two."""
    for name in ("selected_logprob", "active"):
        if name not in columns:
            raise ArtifactError(f"the score of {arm!r} has no column {name!r}")
    owner = columns.get("owner_rank")
    return ScoreTable(
        arm=arm,
        compute_dtype=compute_dtype,
        logprob=columns["selected_logprob"],  # type: ignore[arg-type]
        active=columns["active"].astype(np.bool_, copy=False),
        columns=dict(columns),
        owner_rank=None if owner is None else owner.astype(np.int16, copy=False),
    )


def _finish(
    requested: Requested,
    actual: Actual,
    outcome: CompareOutcome,
    ended: tuple[Status | None, str],
    missing: Mapping[str, str],
    between: tuple[Sequence[dict[str, object]], Sequence[dict[str, object]]],
) -> Judgement:
    """between: what the sides differ by in the columns of the vocabulary, and in flags of determinism."""
    status, reason = ended
    vocabulary, flags = between
    deciding = deciding_arms(requested.verdict_arm)
    tiers = {path: facts.tier for path, facts in requested.definitions.items()}
    coupled: list[dict[str, object]] = []
    undeclared: list[dict[str, object]] = []
    declared = _declared(requested)
    alone = []
    for arm in SCORED_ARMS:
        if arm in actual.applications and arm not in actual.baseline:
            coupled.append({"path": "*", "arm": arm, "baseline": "not scored", "case": "not compared with it"})
            alone += [arm] if arm in deciding else []
        elif arm in actual.applications:
            changed, semantic = coupled_changes(actual.baseline[arm], actual.applications[arm], declared, tiers)
            coupled += changed
            undeclared += semantic if arm in deciding else []
    replicas = tuple({"arm": arm, **item} for arm, items in actual.replica_disagreements.items() for item in items)
    comparison = evolve(
        outcome.comparison,
        coupled_changes=tuple(coupled),
        undeclared_differences=(*undeclared, *vocabulary, *flags),
        replica_disagreements=replicas,
        missing_arms=dict(missing),
    )
    if status is not None:
        comparison = evolve(comparison, status=status.value, reason=reason)
    elif undeclared and comparison.status in (Status.PASS.value, Status.MISMATCH.value):
        names = ", ".join(sorted({str(item["path"]) for item in undeclared}))
        comparison = evolve(
            comparison,
            status=Status.NOT_COMPARABLE.value,
            reason=f"{names} differ from the baseline and the case does not declare it",
        )
    elif vocabulary and comparison.status in (Status.PASS.value, Status.MISMATCH.value):
        sums = "; ".join(f"{side} sums over {vocabulary[0][side]}" for side in ("training", "rollout"))
        comparison = evolve(
            comparison,
            status=Status.NOT_COMPARABLE.value,
            reason=f"{sums}: the sides pad the vocabulary differently and no knob of the case declares it",
        )
    elif flags and comparison.status in (Status.PASS.value, Status.MISMATCH.value):
        comparison = evolve(
            comparison,
            status=Status.NOT_COMPARABLE.value,
            reason="; ".join(str(item["reason"]) for item in flags[:3]),
        )
    elif alone and comparison.status in (Status.PASS.value, Status.MISMATCH.value):
        comparison = evolve(
            comparison,
            status=Status.NOT_COMPARABLE.value,
            reason=f"the baseline has no score of {' and '.join(alone)} that this case could be held against",
        )
    return Judgement(comparison, dict(outcome.token_diffs))


def _declared(requested: Requested) -> set[str]:
    """Return the declared paths; an operator path also declares the knobs that follow from it."""
    declared = set(requested.delta)
    for path in requested.delta:
        head, _, rest = path.partition(".")
        if head == "operators":
            operation, _, side = rest.rpartition(".")
            declared.add(f"{operator_path(operation)}@{side}")
            declared |= {attention_path(side)} if operation == ATTENTION else set()
            declared |= {f"{OPERATOR_KNOB}@{side}"} if operation == HEAD else set()
    return declared


def _without_numbers(
    requested: Requested, contract: Contract, status: Status, reason: str, errors: tuple[str, ...] = ()
) -> Judgement:
    comparison = Comparison(
        schema_version=COMPARISON_SCHEMA,
        status=status.value,
        reason=reason,
        verdict_edge="training_vs_rollout",
        verdict_arm=requested.verdict_arm,
        threshold=None,
        edges={},
        assessment=AssessmentResult(assessment=Assessment.NO_REFERENCE.value, reason="the case has no numbers"),
        identity_errors=errors,
        contract={"source": contract.source, "version": contract.version, "digest": contract.ref.digest},
    )
    return Judgement(comparison, {})

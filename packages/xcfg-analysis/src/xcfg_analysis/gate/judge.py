"""The gate itself: every planned case has to be there, measured, and within what the contract or a baseline allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xcfg.schema.gate import GATE, BaselineCase, Finding, GateBaseline, GateCase, GateReport
from xcfg.schema.names import Status
from xcfg.schema.result import Interval
from xcfg.schema.rules import Findings

from xcfg_analysis.cube.rows import Cube, Row
from xcfg_analysis.cube.slices import Knobs, slices_of
from xcfg_analysis.gate.figures import devices_of, edge_of, figures_of
from xcfg_analysis.gate.kinds import OF_STATUS, finding, worst
from xcfg_analysis.gate.settings import changes, settings_of
from xcfg_analysis.rules.points import MEASURED
from xcfg_analysis.rules.sentences import level_sentence, sentences


def judge(
    cube: Cube,
    baseline: GateBaseline | None = None,
    *,
    name: str = "",
    rules: Findings | None = None,
    knobs: Knobs | None = None,
    before: tuple[Finding, ...] = (),
) -> GateReport:
    """Return the report. name: how the baseline is called in it. rules: what the rules say of the same cube.

    knobs: for aliases in the slices of the experiment. before: what was found of the run before it was judged.

    Without a baseline every case has to PASS. With one, a case that it knows may be a MISMATCH as far as the baseline
    was one: same problem, same status, same assessment, every figure in its corridor. Whatever is missing, empty, not
    finite or of another problem closes the gate.
    """
    own = _of_run(cube, baseline)
    comparable = not [item for item in own if item.kind != "altered_evidence"]
    run = (*before, *own)
    known = {} if baseline is None else baseline.cases
    moved = "" if baseline is None else changes(settings_of(cube), baseline.settings)
    cases = tuple(
        _case(row, slices_of(cube, row, knobs), known.get(row.label) if comparable else None, moved)
        for row in cube.rows
    )
    missing = tuple(dict.fromkeys((*cube.missing, *(label for label in known if label not in _labels(cube)))))
    codes = {item.exit_code for item in (*run, *(found for case in cases for found in case.findings))}
    codes |= {finding("missing_case", "").exit_code} if missing else set()
    return GateReport(
        schema_version=GATE,
        experiment_id=cube.experiment_id,
        exit_code=worst(codes),
        baseline=name if baseline is not None else "",
        contract=dict(cube.contract),
        cases=cases,
        findings=run,
        missing=missing,
        ladder_level=rules.level.level if rules is not None else "",
        conclusions=() if rules is None else (level_sentence(rules), *sentences(rules)),
    )


def missing_finding(label: str) -> Finding:
    """Return what is said of a case that is not there."""
    return finding("missing_case", f"{label!r} is planned, or in the baseline, and has no valid attempt in this run.")


def _labels(cube: Cube) -> set[str]:
    return {row.label for row in cube.rows}


def _of_run(cube: Cube, baseline: GateBaseline | None) -> tuple[Finding, ...]:
    """Return what is wrong with the run as a whole, or with holding it against this baseline."""
    found = [finding("altered_evidence", f"A newer attempt does not count: {text}.") for text in cube.rejected]
    if not any(row.status in MEASURED for row in cube.rows):
        found.append(finding("nothing_measured", f"None of {len(cube.rows)} cases holds a number."))
    if baseline is None:
        return tuple(found)
    if cube.contract.get("digest") != baseline.contract.get("digest"):
        both = (
            f"{ref.get('version', '?')} ({str(ref.get('digest'))[:12]})" for ref in (cube.contract, baseline.contract)
        )
        found.append(finding("contract_changed", "The run was judged by {}, the baseline by {}.".format(*both)))
    if cube.rollout != baseline.rollout:
        told = f"The run scored rollout {cube.rollout[:12]!r}, the baseline {baseline.rollout[:12]!r}."
        found.append(finding("rollout_changed", told))
    changed = [*_changed("runtime", cube.runtimes, baseline.runtimes)]
    changed += _changed("device", devices_of(cube), baseline.devices)
    if changed:
        found.append(finding("environment_changed", f"Not as in the baseline: {'; '.join(changed)}."))
    if cube.rows and not _labels(cube) & set(baseline.cases):
        ours, theirs = f"{len(cube.rows)} cases of {cube.experiment_id!r}", f"{len(baseline.cases)} of the baseline"
        told = f"None of the {ours} is among the {theirs} of {baseline.experiment_id!r}."
        found.append(finding("no_common_case", told))
    return tuple(found)


def _changed(what: str, now: Mapping[str, str], kept: Mapping[str, str]) -> list[str]:
    return [
        f"{side} {what} {now.get(side, 'none')!r} instead of {kept.get(side, 'none')!r}"
        for side in sorted({*now, *kept})
        if now.get(side) != kept.get(side)
    ]


def _case(row: Row, slices: tuple[str, ...], kept: BaselineCase | None, moved: str) -> GateCase:
    edge, figures = edge_of(row), figures_of(row)
    findings = _unmeasured(row, figures)
    if not findings:
        findings = _by_contract(row) if kept is None else _by_baseline(row, figures, kept, moved)
    return GateCase(
        case_id=row.case_id,
        label=row.label,
        role=row.role,
        status=row.status,
        assessment=_assessment(row),
        reason=row.reason,
        slices=slices,
        active_tokens=0 if edge is None else edge.active_tokens,
        figures={key: value for key, value in figures.items() if value is not None},
        corridor={} if kept is None else {key: _interval(item) for key, item in kept.figures.items()},
        judged_by="contract" if kept is None else "baseline",
        seconds=float(sum(row.seconds.values())),
        findings=tuple(findings),
    )


def _interval(item: Any) -> Interval:
    return Interval(value=item.value, low=item.low, high=item.high)


def _assessment(row: Row) -> str:
    return "" if row.assessment is None else row.assessment.assessment


def _unmeasured(row: Row, figures: Mapping[str, float | None]) -> list[Finding]:
    """Return why the row holds no number that could be judged, whatever its status says."""
    if row.status not in MEASURED:
        kind = OF_STATUS.get(Status(row.status), "not_measured")
        return [finding(kind, f"{row.status}: {row.reason or 'no reason given'}.")]
    edge = edge_of(row)
    if edge is None:
        return [finding("not_measured", f"The status is {row.status}, and no edge of the verdict is stored.")]
    if not edge.active_tokens:
        return [finding("zero_tokens", f"The status is {row.status}, and no active token was compared.")]
    bad = [name for name, value in figures.items() if value is None]
    if bad:
        return [finding("non_finite", f"Not a finite number: {', '.join(bad)}.")]
    return []


def _by_contract(row: Row) -> list[Finding]:
    if row.status == Status.PASS.value:
        return []
    edge = edge_of(row)
    if edge is None:
        return [finding("not_measured", "No edge of the verdict is stored.")]
    told = f"{edge.mismatches} of {edge.active_tokens} tokens differ by more than {row.threshold:g} nats"
    return [finding("mismatch", f"{told}, at most by {edge.max_abs:.4g}; {_assessment(row) or 'not assessed'}.")]


def _by_baseline(row: Row, figures: Mapping[str, float | None], kept: BaselineCase, moved: str) -> list[Finding]:
    if row.case_id != kept.case_id:
        told = f"The case is {row.case_id}, in the baseline {kept.case_id}{f': {moved}' if moved else ''}."
        return [finding("case_changed", told)]
    edge = edge_of(row)
    tokens = 0 if edge is None else edge.active_tokens
    if tokens != kept.active_tokens:
        return [finding("tokens_changed", f"{tokens} tokens were compared, in the baseline {kept.active_tokens}.")]
    found = []
    if row.status != kept.status:
        found.append(finding("status_changed", f"The status is {row.status}, in the baseline {kept.status}."))
    if _assessment(row) != kept.assessment:
        told = f"The assessment is {_assessment(row) or 'none'}, in the baseline {kept.assessment or 'none'}."
        found.append(finding("assessment_changed", told))
    for name, figure in kept.figures.items():
        value = figures.get(name)
        if value is None:
            found.append(finding("non_finite", f"{name} stands in the baseline and not in the run."))
        elif not figure.low <= value <= figure.high:
            kind = "above_corridor" if value > figure.high else "below_corridor"
            told = f"{name} is {value:.6g}, the corridor [{figure.low:.6g}, {figure.high:.6g}]"
            found.append(finding(kind, f"{told} around {figure.value:.6g}."))
    return found

"""The journey of `xcfg analyze RUN`: cube, floors, effects, interactions, and what they say together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xcfg.schema import codec
from xcfg.schema.analysis import ANALYSIS, Analysis, Cause, Effect
from xcfg.schema.names import Assessment, Status, exit_code

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Cube, Row
from xcfg_analysis.effects.effect import Effects, effects
from xcfg_analysis.effects.interactions import interactions
from xcfg_analysis.floors.floors import INVALID, floors, resolution
from xcfg_analysis.page.causes import Said, is_excess, say
from xcfg_analysis.page.next_step import next_command
from xcfg_analysis.page.production import introduced, production_status
from xcfg_analysis.page.unvaried import options_of_one_side, settings_of_one_side, suspects
from xcfg_analysis.rules.ladder import ladder
from xcfg_analysis.rules.points import find_points
from xcfg_analysis.samples.interval import IntervalRule
from xcfg_analysis.swaps.find import find_swaps


def analyze_run(folder: Path, *, plugins: Any = None, runtimes: str = "", experiment: str = "") -> Analysis:
    """Return the analysis of `runs/<experiment>`; arguments and errors as for `Evidence.open`."""
    return analyze_evidence(Evidence.open(folder, plugins=plugins, runtimes=runtimes, experiment=experiment))


def analyze_evidence(evidence: Evidence) -> Analysis:
    """Return the analysis of a run that was opened.

    exit_code: that of the baseline's status, or of production's (A5) in a run of profiles;
    1 instead of 0 where a cause or a finding stands.
    """
    cube, baseline = evidence.cube, evidence.cube.baseline
    edge = None if baseline is None else baseline.edges.get(baseline.verdict_edge)
    if baseline is None or edge is None or edge.rms is None:
        return _without_figures(evidence, cube, baseline)
    found = floors(evidence, baseline, cube.rows)
    limits = resolution(found)
    changed = effects(evidence, baseline, cube.cases, limits)
    pairs = interactions(evidence, baseline, cube.cases, limits.get("mean_sq"))
    alpha = 1.0 - evidence.run.contract.assessment.level
    said = say(changed.effects, baseline, cube.definitions, alpha)
    findings = tuple(
        item.finding or f"{item.kind}: {item.reason}" for item in found if item.finding or item.status == INVALID
    )
    sought = is_sought(baseline, changed.effects, said)
    outside = _outside(evidence, baseline, changed.effects, said)
    unvaried = settings_of_one_side(evidence, baseline, suspects(baseline)) if sought else {}
    points = find_points(cube)
    code = exit_code([production_status(points, baseline)])
    assessed = baseline.assessment
    return Analysis(
        schema_version=ANALYSIS,
        conclusion=introduced(points) + _conclusion(baseline, said, changed, outside),
        ladder_level=ladder(points).level if points.profiles else _level(baseline, changed.effects),
        assessment=assessed.assessment if assessed is not None else Assessment.NO_REFERENCE.value,
        assessed=assessed,
        causes=said.causes,
        exonerated=said.lists["exonerated"],
        not_exercised=said.lists["not_exercised"],
        below_resolution=said.lists["below_resolution"],
        unresolved=said.lists["unresolved"],
        not_measured=said.lists["not_measured"],
        interactions=pairs,
        not_alignable=_not_alignable(cube),
        next_command=next_command(evidence, baseline, found, said, unvaried),
        exit_code=1 if code == 0 and (said.causes or findings) else code,
        status=baseline.status,
        reason=baseline.reason,
        source=(cube.experiment_id,),
        recognised=_recognised(cube),
        tokens=edge.active_tokens,
        sequences=evidence.sequences,
        threshold=baseline.threshold,
        mismatches=edge.mismatches,
        figures=edge.aliases,
        experiment_id=cube.experiment_id,
        runtimes=cube.runtimes,
        contract=cube.contract,
        evidence=_names(evidence, baseline),
        floors=found,
        resolution=limits,
        effects=changed.effects,
        families={"gap changes": changed.family, "interactions": len(pairs)},
        outside=outside,
        not_varied=tuple(f"{key} = {baseline.axes[key].requested}" for key in unvaried if key in baseline.axes),
        findings=findings,
        refuted_by=said.causes[0].refuted_by if said.causes else "",
        swaps=_swaps(evidence, limits.get("mean_sq", 0.0)),
    )


def _swaps(evidence: Evidence, limit: float) -> tuple[Cause, ...]:
    """Return the diagnosis of every one-sided operator swap; limit: the largest floor of mean d^2."""
    rule = IntervalRule.of(evidence.run.contract.assessment)
    return tuple(item.cause for item in find_swaps(evidence.cube, evidence, rule=rule, resolution=limit))


def _without_figures(evidence: Evidence, cube: Cube, baseline: Row | None) -> Analysis:
    status = baseline.status if baseline is not None else Status.CANCELLED.value
    why = (baseline.reason or baseline.status) if baseline is not None else "the baseline has no valid attempt"
    return Analysis(
        schema_version=ANALYSIS,
        conclusion=f"Nothing was compared: {why}.",
        assessment=Assessment.NO_REFERENCE.value,
        next_command=f"xcfg verify runs/{cube.experiment_id}",
        exit_code=exit_code([Status(status)]),
        status=status,
        reason=why,
        source=(cube.experiment_id,),
        recognised=_recognised(cube),
        experiment_id=cube.experiment_id,
        runtimes=cube.runtimes,
        contract=cube.contract,
        evidence=_names(evidence, baseline),
    )


def _names(evidence: Evidence, baseline: Row | None) -> dict[str, str]:
    names = {"experiment": evidence.run.revision.experiment_digest, "rollout": evidence.cube.rollout}
    return names | ({} if baseline is None else {"baseline": baseline.case_id, "attempt": baseline.attempt})


def _recognised(cube: Cube) -> str:
    parts = [
        f"a run of {len(cube.rows)} cases, rollout {cube.runtimes['rollout']}, training {cube.runtimes['training']}"
    ]
    if cube.missing:
        parts.append(f"without a valid attempt: {', '.join(cube.missing)}")
    if cube.others:
        parts.append(f"{', '.join(cube.others)} ran it too and are left out")
    return "; ".join(parts)


def _not_alignable(cube: Cube) -> tuple[str, ...]:
    varied = {key.partition("@")[0] for row in cube.cases for key in row.delta}
    stated = {
        path: str(cube.definitions[path].get("not_alignable", "")) for path in sorted(varied & set(cube.definitions))
    }
    return tuple(f"{path}: {why}" for path, why in stated.items() if why)


def is_sought(baseline: Row, found: Sequence[Effect], said: Said) -> bool:
    """Whether the baseline has an excess that no change of those measured is shown to narrow."""
    narrowed = any(cause.direction == "narrows" for cause in said.causes)
    return is_excess(baseline) and any(item.gap for item in found) and not narrowed


def _outside(evidence: Evidence, baseline: Row, found: Sequence[Effect], said: Said) -> tuple[str, ...]:
    """Return what no declared knob accounts for: an excess that nothing narrows, and surroundings that changed."""
    told = [f"{item.label}: {item.reason}" for item in found if item.outcome == "OUTSIDE_THE_KNOBS"]
    measured = [item for item in found if item.gap]
    if is_sought(baseline, found, said):
        told += [
            f"{item}: the other side does not have it, and no case varies it"
            for item in options_of_one_side(evidence.cube.experiment, suspects(baseline))
        ]
        blind = [*said.lists["not_exercised"], *said.lists["not_measured"]]
        bounds = [
            f"{item.label} ({item.reason})" for item in found if item.outcome == "NO_CHANGE_SHOWN" and item.reason
        ]
        word = baseline.assessment.assessment if baseline.assessment is not None else ""
        told.insert(
            0,
            f"the {word} of the baseline: none of the {len(measured)} changes that were measured is shown to narrow "
            "the gap, so its cause lies outside what was varied"
            + (f"; {'; '.join(bounds)}" if bounds else "")
            + (f"; nothing is known of {', '.join(blind)}" if blind else ""),
        )
    return tuple(told)


def _level(baseline: Row, found: Sequence[Effect]) -> str:
    """Return the rung of the alignment ladder that the executed cases reach."""
    if baseline.status == Status.PASS.value:
        return "L1"
    meeting = [item for item in found if item.over == 0 and item.outcome == "CHANGES_GAP"]
    if any(len(item.knobs) == 1 for item in meeting):
        return "L3"
    return "L4" if meeting else "L2"


def _conclusion(baseline: Row, said: Said, changed: Effects, outside: Sequence[str]) -> str:
    edge = baseline.edges[baseline.verdict_edge]
    over = (
        f"{edge.mismatches} of {edge.active_tokens} tokens over {baseline.threshold:g} nats"
        if baseline.threshold
        else ""
    )
    word = baseline.assessment.assessment if baseline.assessment is not None else Assessment.NO_REFERENCE.value
    parts = [f"{baseline.status} ({over}), {word}." if over else f"{baseline.status}, {word}."]
    if baseline.status not in (Status.PASS.value, Status.MISMATCH.value) and baseline.reason:
        parts.append(f"{baseline.reason[0].upper()}{baseline.reason[1:]}.")
    narrowing = [cause for cause in said.causes if cause.direction == "narrows"]
    if narrowing:
        explained = word == Assessment.EXPLAINED_BY_PRECISION.value
        lead = "Honest rounding explains the gap of the baseline; what narrows it" if explained else "Likely cause"
        parts.append(f"{lead}: {_named(narrowing[0])}.")
    elif outside and is_excess(baseline):
        parts.append("The cause lies outside the declared knobs that were varied.")
    elif word == Assessment.EXPLAINED_BY_PRECISION.value:
        parts.append("Honest rounding explains the gap of the baseline.")
    widening = [cause for cause in said.causes if cause.direction != "narrows"]
    if widening:
        parts.append(f"What opens the gap further: {'; '.join(_named(cause) for cause in widening[:3])}.")
    if not said.causes and changed.family:
        parts.append(f"No change of the gap stands among {changed.family} that were tried.")
    return " ".join(parts)


def _named(cause: Cause) -> str:
    return f"{cause.knob} ({cause.says})"


def store(evidence: Evidence, found: Analysis) -> Path:
    """Put an analysis into the store of its run; return its file."""
    path: Path = evidence.run.put_analysis(codec.plain(found))
    return path

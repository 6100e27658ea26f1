"""The journey of `xcfg analyze RUN`: cube, floors, effects, interactions, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from xcfg.schema import codec
from xcfg.schema.analysis import ANALYSIS, Analysis, Effect
from xcfg.schema.gradient import GradientSummary
from xcfg.schema.names import Assessment, Status, exit_code
from xcfg.schema.rules import Findings

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Cube, Row
from xcfg_analysis.effects.effect import effects
from xcfg_analysis.effects.interactions import interactions
from xcfg_analysis.floors.floors import INVALID, floors, resolution
from xcfg_analysis.page.causes import Said, is_blamed, is_excess, say
from xcfg_analysis.page.conclusion import conclusion
from xcfg_analysis.page.looks import looks_like
from xcfg_analysis.page.next_step import Next, home_of, next_step
from xcfg_analysis.page.production import introduced, is_acquitted, production_row, production_status
from xcfg_analysis.page.smallest import smallest
from xcfg_analysis.page.unvaried import options_of_one_side, settings_of_one_side, suspects
from xcfg_analysis.rules.conclude import conclude
from xcfg_analysis.rules.downstream import Series
from xcfg_analysis.rules.points import find_points
from xcfg_analysis.samples.interval import IntervalRule
from xcfg_analysis.swaps.find import Swap, find_swaps


def analyze_run(
    folder: Path, *, plugins: Any = None, runtimes: str = "", experiment: str = "", series: Series | None = None
) -> Analysis:
    """Return the analysis of `runs/<experiment>`; arguments and errors as for `Evidence.open`.

    series: of training downstream; it ranks severity and informs the rules that ask for it.
    """
    return analyze_evidence(Evidence.open(folder, plugins=plugins, runtimes=runtimes, experiment=experiment), series)


def analyze_evidence(evidence: Evidence, series: Series | None = None) -> Analysis:
    """Return the analysis of a run that was opened.

    status, assessment, figures and signatures: of production, which is the baseline, or A5 in a run of profiles.
    exit_code: that of the same status; 1 instead of 0 where a finding stands, or a cause that something is to blame
    for. What only opens the gap further is to blame for nothing, and a signature changes neither.
    """
    return look_at(evidence, series).analysis


@dataclass(frozen=True)
class Looked:
    """An analysis, whose next command works beside the folder of runs; following: the next step from another folder."""

    analysis: Analysis
    following: Callable[[Path], Next]

    def seen_from(self, here: Path) -> Analysis:
        """Return the analysis with a next command that works in the folder `here`."""
        return codec.evolve(self.analysis, next_command=self.following(here).command)


def look_at(evidence: Evidence, series: Series | None = None) -> Looked:
    """Return the analysis of a run with its next step as data."""
    cube, baseline = evidence.cube, evidence.cube.baseline
    points = find_points(cube)
    edge = None if baseline is None else baseline.edges.get(baseline.verdict_edge)
    if baseline is None or edge is None or edge.rms is None:
        return _without_figures(evidence, baseline, conclude(cube, series))
    found = floors(evidence, baseline, cube.rows)
    limits = resolution(found)
    changed = effects(evidence, baseline, cube.cases, limits)
    pairs = interactions(evidence, baseline, cube.cases, limits.get("mean_sq"))
    alpha = 1.0 - evidence.run.contract.assessment.level
    acquitted = is_acquitted(points)
    said = say(changed.effects, baseline, cube.definitions, alpha, profiles=points.profiles, acquitted=acquitted)
    findings = _altered(cube) + tuple(
        item.finding or f"{item.kind}: {item.reason}" for item in found if item.finding or item.status == INVALID
    )
    sought = is_sought(baseline, changed.effects, said)
    outside = _outside(evidence, baseline, changed.effects, said)
    unvaried = settings_of_one_side(evidence, baseline, suspects(baseline)) if sought else {}
    rules = conclude(cube, series, None if points.profiles else _narrowed(changed.effects))
    code = exit_code([production_status(points, baseline)])
    judged = production_row(points, baseline)
    edge = judged.edges.get(judged.verdict_edge)
    assessed = judged.assessment
    looks = looks_like(evidence, judged, evidence.plugins)
    swaps = _swaps(evidence, limits.get("mean_sq", 0.0))
    enough = smallest(evidence, baseline, points)
    following = partial(next_step, evidence, baseline, found, said, points, unvaried=unvaried, enough=enough)
    step = following(home_of(evidence))
    blamed = any(is_blamed(cause, profiles=points.profiles) for cause in said.causes)
    concluded = conclusion(
        judged,
        said,
        family=changed.family,
        tested=sum(any(one.p_value is not None for one in item.gap) for item in changed.effects),
        outside=outside,
        looks=looks.named,
        profiles=points.profiles,
    )
    analysis = Analysis(
        schema_version=ANALYSIS,
        conclusion=introduced(points) + concluded,
        ladder_level=rules.level.level,
        assessment=assessed.assessment if assessed is not None else Assessment.NO_REFERENCE.value,
        assessed=assessed,
        causes=said.causes,
        exonerated=said.lists["exonerated"],
        not_exercised=said.lists["not_exercised"],
        below_resolution=said.lists["below_resolution"],
        unresolved=said.lists["unresolved"],
        not_measured=said.lists["not_measured"],
        not_comparable=said.lists["not_comparable"],
        interactions=pairs,
        minimal_sets=rules.level.sets,
        left_enabled=rules.level.left,
        not_alignable=_not_alignable(cube),
        signatures=looks.named,
        insufficient_data=looks.insufficient,
        fitted_tokens=looks.fitted,
        next_step=step.step,
        next_command=step.command,
        exit_code=1 if code == 0 and (findings or (blamed and not acquitted)) else code,
        status=judged.status,
        reason=judged.reason,
        source=(cube.experiment_id,),
        recognised=_recognised(cube),
        tokens=0 if edge is None else edge.active_tokens,
        sequences=evidence.sequences,
        threshold=judged.threshold if edge is not None and edge.rms is not None else None,
        mismatches=0 if edge is None else edge.mismatches,
        figures={} if edge is None else edge.aliases,
        experiment_id=cube.experiment_id,
        runtimes=cube.runtimes,
        contract=cube.contract,
        evidence=_names(evidence, baseline, judged),
        floors=found,
        resolution=limits,
        effects=changed.effects,
        families={
            "gap changes": changed.family,
            "interactions": len(pairs),
            "swaps": sum(len(item.p_values) for item in swaps),
        },
        outside=outside,
        not_varied=tuple(f"{key} = {baseline.axes[key].requested}" for key in unvaried if key in baseline.axes),
        findings=findings,
        refuted_by=said.causes[0].refuted_by if said.causes else "",
        swaps=tuple(item.cause for item in swaps),
        gradients=_gradients(cube),
        rules=rules,
        minimization=enough,
    )
    return Looked(analysis, following)


def _narrowed(found: Sequence[Effect]) -> dict[str, bool]:
    return {item.case_id: item.outcome == "CHANGES_GAP" and item.direction == "narrows" for item in found}


def _swaps(evidence: Evidence, limit: float) -> tuple[Swap, ...]:
    """Return every one-sided operator swap; limit: the largest floor of mean d^2."""
    rule = IntervalRule.of(evidence.run.contract.assessment)
    return find_swaps(evidence.cube, evidence, rule=rule, resolution=limit)


def _without_figures(evidence: Evidence, baseline: Row | None, rules: Findings) -> Looked:
    cube = evidence.cube
    status = baseline.status if baseline is not None else Status.CANCELLED.value
    why = (baseline.reason or baseline.status) if baseline is not None else "the baseline has no valid attempt"
    following = partial(next_step, evidence, None, (), None, find_points(cube))
    step = following(home_of(evidence))
    analysis = Analysis(
        schema_version=ANALYSIS,
        conclusion=f"Nothing was compared: {why}.",
        ladder_level=rules.level.level,
        assessment=Assessment.NO_REFERENCE.value,
        next_step=step.step,
        next_command=step.command,
        exit_code=exit_code([Status(status)]),
        findings=_altered(cube),
        status=status,
        reason=why,
        source=(cube.experiment_id,),
        recognised=_recognised(cube),
        experiment_id=cube.experiment_id,
        runtimes=cube.runtimes,
        contract=cube.contract,
        evidence=_names(evidence, baseline),
        rules=rules,
    )
    return Looked(analysis, following)


def _names(evidence: Evidence, baseline: Row | None, production: Row | None = None) -> dict[str, str]:
    names = {"experiment": evidence.run.revision.experiment_digest, "rollout": evidence.cube.rollout}
    if baseline is not None:
        names |= {"baseline": baseline.case_id, "attempt": baseline.attempt}
    return names if production in (None, baseline) else names | {"production": production.case_id}


def _altered(cube: Cube) -> tuple[str, ...]:
    return tuple(f"a newer attempt is altered or gone and does not count: {text}" for text in cube.rejected)


def _gradients(cube: Cube) -> dict[str, dict[str, GradientSummary]]:
    """Return label -> arm -> gradient of the rows whose scores looked at one."""
    told = {
        row.label: {arm: cell.gradient for arm, cell in row.arms.items() if cell.gradient is not None}
        for row in cube.rows
    }
    return {label: arms for label, arms in told.items() if arms}


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
        blind = [key for name in ("not_exercised", "not_measured", "not_comparable") for key in said.lists[name]]
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


def store(evidence: Evidence, found: Analysis) -> Path:
    """Put an analysis into the store of its run; return its file."""
    path: Path = evidence.run.put_analysis(codec.plain(found))
    return path

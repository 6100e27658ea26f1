"""`--profile NAME`: the experiment of a file as its aligned reference, from which production is built up again.

The baseline becomes A0, every setting in which the sides differ becomes an axis with production's value as its one
level, and rows of a zip set whole classes of them: A1, A2, A3, the pairs of A4, and A5. Each point is a slice of the
same name, so `--slice A2` and a suite per slice work as for any other experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xcfg.errors import NothingSelectedError
from xcfg.plugin import Profile
from xcfg.schema.codec import convert, evolve
from xcfg.schema.experiment import V2, Axis, Experiment
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.operators import OperatorChoice
from xcfg.schema.plan import ExperimentCase, PlanIssue

from xcfg_analysis.rules.classes import ALIGNED, PAIRS, PRODUCTION, SINGLE, pair_slice
from xcfg_analysis.rules.differences import OPERATORS, Difference, Sides, find

SUFFIX = "-profiles"
LOGP = "logp.backend"
SELECTED = "selected_logprob"


def expand(
    profile: Profile,
    experiment: Experiment,
    baseline: ExperimentCase,
    knobs: Mapping[str, KnobDefinition],
    root: Path | None,
) -> tuple[Experiment, tuple[str, ...], tuple[PlanIssue, ...]]:
    """Return the experiment of all profiles, the slices of this one, and what stays as production has it.

    See xcfg.plugin.protocols.ProfileExpander. The experiment's id has the suffix `-profiles`, so the runs of the file
    itself stay as they are; side scores are shared.
    """
    sides = find(baseline, knobs, experiment.fixed)
    points = rows(sides.differences)
    expanded = evolve(
        experiment,
        schema_version=V2,
        experiment_id=experiment.experiment_id + SUFFIX,
        strategy="zip" if sides.differences else "one_at_a_time",
        baseline=_baseline(experiment, sides, knobs),
        interventions=tuple(_axis(item, points) for item in sides.differences),
        operators=_operators(experiment, sides),
        align=(),
        pairwise_paths=(),
        combinations=(),
        slices=slices(sides.differences),
    )
    chosen = _chosen(profile.name, sides, points)
    if profile.name == "A4":
        _check_pairs_are_due(expanded.experiment_id, root)
    issues = (
        PlanIssue(code="NOT_ALIGNED", message=f"{path!r} stays as production has it in every profile: {why}", path=path)
        for path, why in sorted(sides.kept.items())
    )
    return expanded, chosen, tuple(issues)


def rows(differences: list[Difference]) -> dict[str, frozenset[str]]:
    """Return point -> the keys with production's value there; a point without a difference of its own is left out."""
    by = {of: frozenset(item.key for item in differences if item.of == of) for of in SINGLE.values()}
    found = {name: by[of] for name, of in SINGLE.items() if by[of]}
    found |= {pair_slice(pair): by[pair[0]] | by[pair[1]] for pair in PAIRS if by[pair[0]] and by[pair[1]]}
    everything = frozenset(item.key for item in differences)
    return found | {PRODUCTION: everything} if everything else found


def slices(differences: list[Difference]) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Return the slice of each point: what has to be aligned in it; for A5, production's values."""
    points = rows(differences)
    aligned = {item.key: (_shown(item.aligned),) for item in differences}
    found = {ALIGNED: aligned} if aligned else {}
    for name, keys in points.items():
        if name != PRODUCTION:
            found[name] = {key: values for key, values in aligned.items() if key not in keys}
    if differences:
        found[PRODUCTION] = {item.key: (_shown(item.production),) for item in differences}
    return found


def _chosen(name: str, sides: Sides, points: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    kept = "".join(f" {path}: {why}." for path, why in sorted(sides.kept.items()))
    single = tuple(point for point in points if point in SINGLE)
    pairs = tuple(point for point in points if point.startswith("A4."))
    last = (PRODUCTION,) if PRODUCTION in points else ()
    if name == ALIGNED:
        return (ALIGNED,) if points else ("",)
    if name == "A0-A5":
        chosen = (*single, *last)
    elif name == "A4":
        chosen = (*single, *pairs, *last) if pairs else ()
    else:
        chosen = tuple(point for point in points if point == name)
    if not chosen:
        lacking = f"no {SINGLE[name]} setting differs between the sides" if name in SINGLE else "nothing differs"
        if name == "A4":
            lacking = "the sides do not differ in two classes"
        raise NothingSelectedError(
            f"the profile {name} has no case: {lacking} that can be aligned",
            hint=f"`xcfg knobs show PATH` says what a setting can be aligned with.{kept}",
        )
    return chosen


def _baseline(experiment: Experiment, sides: Sides, knobs: Mapping[str, KnobDefinition]) -> dict[str, Any]:
    """Return A0's knobs. What the file maps itself is left to the mapping, and so is what is fixed."""
    fixed = {key.partition("@")[0] for key in experiment.fixed}
    mapped = SELECTED in experiment.operators or any(key.startswith(f"{OPERATORS}{SELECTED}.") for key in fixed)
    found = {}
    for key, value in sides.aligned.items():
        path = key.partition("@")[0]
        derived = path in knobs and knobs[path].derived
        if path not in fixed and not (derived and (path != LOGP or mapped)):
            found[key] = value
    return found


def _operators(experiment: Experiment, sides: Sides) -> dict[str, dict[str, OperatorChoice]]:
    """Return the mapping of A0; an operator that logp.backend derives stays derived."""
    varied = {item.path.split(".")[1] for item in sides.differences if item.path.startswith(OPERATORS)}
    explicit = {*experiment.operators, *(key.split(".")[1] for key in experiment.fixed if key.startswith(OPERATORS))}
    return {
        operation: {side: _choice(value) for side, value in both.items()}
        for operation, both in sides.operators.items()
        if operation in explicit or (operation in varied and operation != SELECTED)
    }


def _choice(value: Any) -> OperatorChoice:
    return OperatorChoice(backend=value) if isinstance(value, str) else convert(value, OperatorChoice)


def _axis(item: Difference, points: Mapping[str, frozenset[str]]) -> Axis:
    """Return the axis of a difference: one value per row of the zip, production's or A0's."""
    values = tuple(item.production if item.key in keys else item.aligned for keys in dict.fromkeys(points.values()))
    return Axis(path=item.path, values=values, side=item.side)


def _shown(value: Any) -> Any:
    return value["backend"] if isinstance(value, dict) else value


def _check_pairs_are_due(experiment_id: str, root: Path | None) -> None:
    """Raise NothingSelectedError unless production fails and every class alone passes, as the run in `root` says."""
    if root is None:
        return
    from xcfg_analysis.cube.load import load_cube
    from xcfg_analysis.rules.points import find_points, why_no_pairs

    folder = root / experiment_id
    if not folder.is_dir():
        reason = f"there is no run of A1, A2, A3 and A5 in {str(folder)!r} yet"
    else:
        reason = why_no_pairs(find_points(load_cube(folder)))
    if reason:
        raise NothingSelectedError(
            f"A4 is skipped: {reason}",
            hint="Pairs of classes run where production fails and each class alone passes: --profile A0-A5 first.",
        )

"""From interventions and align entries to axes: levels normalised, repeats dropped with an issue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from xcfg.errors import ConfigError
from xcfg.planning.alignment import Alignment
from xcfg.planning.baseline import Baseline
from xcfg.planning.effective import Effective
from xcfg.planning.normalise import OPERATORS, Catalogue, as_choice, same, same_choice, show
from xcfg.schema._base import Value
from xcfg.schema.codec import canonical_json
from xcfg.schema.experiment import V1, Axis, Experiment
from xcfg.schema.operators import OperatorChoice
from xcfg.schema.plan import PlanIssue

Level: TypeAlias = Value | OperatorChoice


@dataclass(frozen=True)
class PlanAxis:
    """One varied thing. Level 0 is the baseline; level i is `levels[i - 1]`.

    rows: for zip, the level of each value as listed. alignment: set for an align entry; it is its one level.
    """

    key: str
    path: str
    side: str | None
    levels: tuple[Level, ...]
    rows: tuple[int, ...] = ()
    alignment: Alignment | None = None

    @property
    def is_operator(self) -> bool:
        """Whether the levels are operator choices."""
        return self.alignment is None and self.path.startswith(OPERATORS)

    def label(self, level: int) -> str:
        """Return how level `level` (1 or more) reads in a label."""
        return self.key if self.alignment else f"{self.key}={show(self.levels[level - 1])}"


def check_paths(experiment: Experiment, catalogue: Catalogue) -> None:
    """Refuse interventions on paths or sides that do not exist."""
    for position, axis in enumerate(experiment.interventions):
        if not axis.path.startswith(OPERATORS) or experiment.schema_version == V1:
            catalogue.keyed(axis.key, f"$.interventions[{position}].path")


def build_axes(
    experiment: Experiment, catalogue: Catalogue, baseline: Baseline, alignments: Sequence[Alignment]
) -> tuple[list[PlanAxis], list[PlanIssue]]:
    """Return the axes in file order, interventions first, and what was dropped. Raises ConfigError."""
    issues: list[PlanIssue] = []
    merged = _merge(experiment, issues)
    axes = []
    for position, axis in merged:
        dropped: list[PlanIssue] = []
        built = _build(axis, f"$.interventions[{position}]", catalogue, baseline.effective, dropped)
        # zip pairs values by position, where a value that stands twice is meant.
        issues += [] if experiment.strategy == "zip" else dropped
        _refuse_fixed(built, experiment, catalogue, position)
        axes.append(built)
    axes = [axis for axis in axes if axis.levels or experiment.strategy == "zip"]
    axes += [PlanAxis(item.label, item.path, None, (item.to,), alignment=item) for item in alignments]
    return axes, issues


def _merge(experiment: Experiment, issues: list[PlanIssue]) -> list[tuple[int, Axis]]:
    merged: dict[str, tuple[int, Axis]] = {}
    values: dict[str, list[Any]] = {}
    for position, axis in enumerate(experiment.interventions):
        where = f"$.interventions[{position}]"
        if not axis.values:
            raise ConfigError(
                f"EMPTY_INTERVENTION: {axis.key!r} lists no value",
                source=experiment.source,
                path=f"{where}.values",
                hint="List at least one value beside the baseline's, or remove the intervention.",
            )
        if axis.key not in merged:
            merged[axis.key] = (position, axis)
            values[axis.key] = list(axis.values)
            continue
        first = merged[axis.key][0]
        values[axis.key] += axis.values
        message = f"{axis.key!r} also stands at $.interventions[{first}]; their values were joined"
        issues.append(PlanIssue(code="DUPLICATE_INTERVENTION", message=message, path=where))
    return [
        (position, Axis(path=axis.path, values=tuple(values[key]), side=axis.side))
        for key, (position, axis) in merged.items()
    ]


def _build(axis: Axis, where: str, catalogue: Catalogue, base: Effective, issues: list[PlanIssue]) -> PlanAxis:
    levels: list[Level] = []
    numbers: dict[object, int] = {}
    rows: list[int] = []
    for index, raw in enumerate(axis.values):
        level = _level(axis, raw, f"{where}.values[{index}]", catalogue)
        key = _what(level)
        found = 0 if _is_baseline(axis, level, base) else numbers.get(key)
        if found is None:
            levels.append(level)
            found = numbers[key] = len(levels)
        else:
            what = "the baseline's value" if found == 0 else "listed before"
            message = f"{show(level)} of {axis.key!r} is {what} and was dropped"
            issues.append(PlanIssue(code="REPEATED_LEVEL", message=message, path=f"{where}.values[{index}]"))
        rows.append(found)
    if not levels:
        message = f"{axis.key!r} has no level beside the baseline's"
        issues.append(PlanIssue(code="EMPTY_INTERVENTION", message=message, path=where))
    return PlanAxis(axis.key, axis.path, axis.side, tuple(levels), tuple(rows))


def _level(axis: Axis, raw: Any, where: str, catalogue: Catalogue) -> Level:
    if axis.path.startswith(OPERATORS):
        return as_choice(raw)
    return catalogue.value(catalogue.knob(axis.path, where), raw, where)


def _what(level: Level) -> object:
    """Return what two levels share exactly where `same`, or `same_choice`, calls them one; a list may be very long."""
    return type(level), canonical_json(level) if isinstance(level, OperatorChoice) else level


def _is_baseline(axis: Axis, level: Level, base: Effective) -> bool:
    if isinstance(level, OperatorChoice):
        _, operation, side = axis.path.split(".")
        return same_choice(base.operators[operation][side], level)
    pair = base.knobs[axis.path]
    held = {None: pair, "rollout": pair[:1], "training": pair[1:]}[axis.side]
    return all(same(value, level) for value in held)


def _refuse_fixed(axis: PlanAxis, experiment: Experiment, catalogue: Catalogue, position: int) -> None:
    for key in experiment.fixed:
        if key == axis.key or key.partition("@")[0] == axis.path:
            raise ConfigError(
                f"FIXED_AND_VARIED: {axis.key!r} is varied, and {key!r} is fixed for all cases",
                source=catalogue.source,
                path=f"$.interventions[{position}].path",
                hint="Remove the intervention or the fixed value.",
            )

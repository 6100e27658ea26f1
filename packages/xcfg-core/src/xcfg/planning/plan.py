"""Plan an experiment: baseline, axes, cells, cases. Deterministic, and without an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xcfg.errors import ConfigError
from xcfg.planning.alignment import resolve_alignments
from xcfg.planning.axes import PlanAxis, build_axes, check_paths
from xcfg.planning.baseline import build_baseline, mentioned
from xcfg.planning.cells import Built, Cell, Grid
from xcfg.planning.constraints import build_constraints
from xcfg.planning.covering import changed_pairs, pair_count
from xcfg.planning.effective import write_knobs
from xcfg.planning.ids import CaseIds
from xcfg.planning.isolation import check_isolation
from xcfg.planning.normalise import Catalogue
from xcfg.planning.strategies import (
    IndexPair,
    check_zip,
    combined_cells,
    count_cells,
    covering_cells,
    listed_pairs,
    single_cells,
)
from xcfg.schema.experiment import MAX_CASES_LIMIT, Combination, Experiment
from xcfg.schema.identity import IdentityDigests
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Role
from xcfg.schema.plan import Coverage, ExperimentCase, ExperimentPlan, FilteredCell, PlanIssue

_CONTROLS = (
    (Role.REPEAT, "repeats"),
    (Role.FRESH, "fresh_processes"),
    (Role.SHUFFLED, "shuffled"),
    (Role.COLD, "cold"),
    (Role.WARM, "warm"),
    (Role.AT_END, "at_end"),
)


def plan_experiment(
    experiment: Experiment,
    knobs: Mapping[str, KnobDefinition],
    identity: IdentityDigests,
    *,
    providers: Mapping[str, str] | None = None,
) -> ExperimentPlan:
    """Return the plan of `experiment`, whose contract has been resolved by then.

    knobs: name -> declaration, of all active plugins. providers: prefix of a knob path -> the package that
    would provide it, for errors. Raises ConfigError or UnknownNameError with the JSON path of the fault; what
    could be corrected (a repeated level) is an issue of the plan.
    """
    catalogue = Catalogue(knobs, providers or {}, experiment.schema_version, experiment.source)
    check_paths(experiment, catalogue)
    paths = mentioned(experiment, catalogue)
    alignments = resolve_alignments(experiment, catalogue, paths)
    paths.update(path for item in alignments for path in item.paths)
    baseline = build_baseline(experiment, catalogue, paths)
    axes, issues = build_axes(experiment, catalogue, baseline, alignments)
    pairs = _pairs(experiment, axes, issues)
    grid = Grid(tuple(axes), baseline, build_constraints(experiment, catalogue), experiment.source)
    return _Planner(experiment, identity, grid, pairs, issues).plan()


def _pairs(experiment: Experiment, axes: list[PlanAxis], issues: list[PlanIssue]) -> list[IndexPair]:
    check_zip(experiment, axes)
    kept = {axis.key for axis in axes}
    dropped = [axis.key for axis in experiment.interventions if axis.key not in kept]
    return listed_pairs(experiment, axes, dropped, issues)


class _Planner:
    """Collects the cases of one plan."""

    def __init__(
        self,
        experiment: Experiment,
        identity: IdentityDigests,
        grid: Grid,
        pairs: list[IndexPair],
        issues: list[PlanIssue],
    ) -> None:
        self.experiment, self.identity, self.grid, self.pairs = experiment, identity, grid, pairs
        self.issues = issues
        self.ids = CaseIds(experiment, identity)
        self.cases: dict[str, ExperimentCase] = {}
        self.filtered: list[FilteredCell] = []
        self.seen: dict[Cell, str] = {}
        self.covering = False

    def plan(self) -> ExperimentPlan:
        experiment = self.experiment
        self._check_cap()
        combinations: tuple[str, ...] = ()
        if experiment.combinations:
            self._add((0,) * len(self.grid.axes))
            combinations = tuple(map(self._add_combination, experiment.combinations))
        else:
            for cell in self._cells():
                self._add(cell)
            self._add_controls()
        return ExperimentPlan(
            experiment_id=experiment.experiment_id,
            scenario_id=experiment.scenario_id,
            contract=experiment.contract,
            identity=self.identity,
            strict_fallback=experiment.strict_fallback,
            cases=tuple(self.cases.values()),
            filtered=tuple(self.filtered),
            issues=tuple(self.issues),
            reference=experiment.controls.reference,
            scenario=experiment.scenario,
            combinations=combinations,
            coverage=self._coverage() if self.covering else None,
        )

    def _controls(self) -> int:
        return sum(getattr(self.experiment.controls, name) for _, name in _CONTROLS)

    def _check_cap(self) -> None:
        limit, searched = self.experiment.max_cases, self.experiment.combinations
        if searched:  # a search has a budget of its own; the file's limit is that of its strategy
            limit = MAX_CASES_LIMIT
            count = 1 + sum(1 + item.repeats for item in searched)
        else:
            count = count_cells(self.experiment.strategy, self.grid.axes, self.pairs) + self._controls()
        if count > limit:
            raise ConfigError(
                f"PLAN_TOO_LARGE: the plan would have {count} cases, more than {limit}",
                source=self.experiment.source,
                path="$.limits.max_cases",
                hint="List fewer values or controls, or (v2) raise limits.max_cases, at most 4096.",
            )

    def _cells(self) -> Iterator[Cell]:
        strategy, axes = self.experiment.strategy, self.grid.axes
        yield from single_cells(axes)
        if strategy != "pairwise" or self.pairs or self.experiment.pairwise_paths:
            yield from combined_cells(strategy, axes, self.pairs)
            return
        left = self.experiment.max_cases - self._controls() - len(self.cases)
        self.covering = True
        covering = covering_cells(axes, self.grid.allows, limit=left, source=self.experiment.source)
        yield from covering.rows
        for first, a, second, b in covering.impossible:
            if a and b:
                yield tuple(a if i == first else b if i == second else 0 for i in range(len(axes)))

    def _coverage(self) -> Coverage:
        """Return what the cells that became cases cover, counted cell by cell."""
        cells = [cell for cell, case_id in self.seen.items() if case_id]
        held = {pair for cell in cells for pair in changed_pairs(cell)}
        levels = [len(axis.levels) for axis in self.grid.axes]
        rows = len({self.seen[cell] for cell in cells if sum(map(bool, cell)) > 1})
        return Coverage(pairs=pair_count(levels), covered=len(held), rows=rows)

    def _add_combination(self, wanted: Combination) -> str:
        """Plan one combination of align entries and its repeats; return the case that stands for it."""
        first = len(self.grid.axes) - len(self.experiment.align)
        cell = tuple(int(index - first in wanted.align) for index in range(len(self.grid.axes)))
        if cell not in self.seen:
            self._add(cell)
        found = self.seen[cell]
        built = self.grid.build(cell)
        for index in range(1, wanted.repeats + 1 if found else 1):
            case = self._case(built, Role.REPEAT, index)
            self.cases.setdefault(case.case_id, case)
        return found

    def _add(self, cell: Cell) -> None:
        built = self.grid.build(cell)
        changed = sum(map(bool, cell))
        if cell in self.seen:  # zip lists rows that are single changes, which stand in the plan anyway
            if changed > 1:
                self._issue("REPEATED_ROW", f"the row {built.label!r} stands twice and was planned once")
            return
        self.seen[cell] = ""
        if built.refusal is not None:
            if not changed:
                raise ConfigError(
                    f"BASELINE_FILTERED: the baseline breaks {built.refusal.code!r}: {built.refusal.reason}",
                    source=self.experiment.source,
                    path="$.baseline",
                    hint="Change the baseline or the constraint: every case is a change of the baseline.",
                )
            code, reason = built.refusal.code, built.refusal.reason
            self.filtered.append(FilteredCell(label=built.label, delta=built.delta, code=code, reason=reason))
            return
        case = self._case(built, Role.CASE, 0)
        self.seen[cell] = case.case_id
        baseline = next(iter(self.cases.values()), case)
        if case.case_id in self.cases:
            twin = self.cases[case.case_id]
            code = "ALREADY_ALIGNED" if twin is baseline else "DUPLICATE_CELL"
            self._issue(code, f"{built.label!r} asks for the same as {twin.label!r} and was dropped")
            return
        check_isolation(baseline, case, built.declared, source=self.experiment.source)
        self.cases[case.case_id] = case

    def _issue(self, code: str, message: str) -> None:
        self.issues.append(PlanIssue(code=code, message=message))

    def _case(self, built: Built, role: Role, index: int) -> ExperimentCase:
        written = write_knobs(built.effective, self.grid.baseline.plain)
        operators = {name: dict(sides) for name, sides in built.effective.operators.items()}
        return ExperimentCase(
            case_id=self.ids.case_id(written, operators, role.value, index),
            label=_label(built, role, index),
            knobs=written,
            delta=built.delta,
            operators=operators,
            runtime_options=self.experiment.runtime_options,
            role=role.value,
            index=index,
        )

    def _add_controls(self) -> None:
        built = self.grid.build((0,) * len(self.grid.axes))
        for role, name in _CONTROLS:
            for index in range(1, getattr(self.experiment.controls, name) + 1):
                case = self._case(built, role, index)
                self.cases[case.case_id] = case


def _label(built: Built, role: Role, index: int) -> str:
    if role is Role.CASE:
        return built.label
    control = f"{role.value} {index}"
    return f"{built.label}, {control}" if built.delta else control

"""The oracle of a live search: every set of align entries becomes a case, run and sealed as `xcfg run` does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xcfg
from xcfg.errors import ExecutionError, InterruptedRunError, NotComparableError, NothingSelectedError, XcfgError
from xcfg.schema.experiment import Combination
from xcfg.schema.names import LAUNCH_STATUSES

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.minimize.atoms import Atom, make_atom, not_alignable
from xcfg_analysis.minimize.objective import Judged, Objective, Outcome
from xcfg_analysis.minimize.search import NONE, Answer, Question, Subset
from xcfg_analysis.samples.sample import Sample, sample


@dataclass(frozen=True)
class Atoms:
    """What an experiment lets be aligned.

    idle: entries that change nothing alone, with why. fixed: path -> why it cannot be aligned.
    """

    atoms: tuple[Atom, ...]
    idle: tuple[str, ...]
    fixed: Mapping[str, str]


def find_atoms(file: Path, plugins: Any) -> Atoms:
    """Return the atoms of the experiment in `file`; nothing is started. Raises XcfgError.

    NothingSelectedError where it lists no align entry.
    """
    entries = xcfg.load(file, plugins=plugins).experiment.align
    if not entries:
        raise NothingSelectedError(
            f"{str(file)!r} lists no `align` entry, so there is nothing to minimize",
            hint='Add e.g. "align": [{"path": "rollout.dtype", "to": "training"}]; `xcfg knobs list` shows the groups.',
        )
    alone = [Combination(align=(index,)) for index in range(len(entries))]
    plan = xcfg.load(file, plugins=plugins, combinations=alone).plan
    production = plan.cases[0]
    cases = {case.case_id: case for case in plan.cases}
    knobs = plugins.knobs()
    found: dict[str, Atom] = {}
    idle = []
    filtered = {cell.label: cell.reason for cell in plan.filtered}
    for index, (entry, case_id) in enumerate(zip(entries, plan.combinations, strict=True)):
        label = f"align {entry.path} to {entry.to}"
        if case_id == production.case_id:
            idle.append(f"{label}: the sides are equal already")
        elif case_id in found:
            idle.append(f"{label}: the same as {found[case_id].label!r}")
        else:
            # An entry that a constraint filters alone may still be a case together with another one.
            paths = tuple(sorted(cases[case_id].delta)) if case_id else (entry.path,)
            key = case_id or label
            found[key] = make_atom(label, paths, knobs, (index,))
            if not case_id:
                idle.append(f"{label}: no case alone: {filtered.get(label, 'filtered')}")
    return Atoms(tuple(found.values()), tuple(idle), not_alignable(production.knobs, knobs))


@dataclass
class Prober:
    """Runs sets of atoms, and judges them by one objective against the production point. ask: of `xcfg.probing`."""

    ask: Callable[[Sequence[Combination]], Any]
    plugins: Any
    atoms: Sequence[Atom]
    objective: Objective
    samples: dict[Subset, list[Sample]] = field(default_factory=dict)
    rows: dict[Subset, Row] = field(default_factory=dict)
    judged: dict[Subset, Judged] = field(default_factory=dict)
    asked: dict[Subset, int] = field(default_factory=dict)
    runs: int = 0
    folder: Path | None = None
    pair: str = ""

    def __call__(self, questions: Sequence[Question]) -> list[Answer]:
        """Answer each question from scored cases. Raises InterruptedRunError where the run was interrupted."""
        wanted = {question.subset: question.repeats for question in questions}
        wanted.setdefault(NONE, self.asked.get(NONE, 0))
        self._run(wanted)
        return [self._answer(question.subset) for question in questions]

    def seal_plan(self) -> None:
        """Plan everything that was tried in one last revision, so that the newest one is the whole search."""
        if self.runs > 1:
            self._run(self.asked)

    def _run(self, wanted: Mapping[Subset, int]) -> None:
        combinations = [
            Combination(
                align=tuple(entry for index in sorted(subset) for entry in self.atoms[index].entries), repeats=more
            )
            for subset, more in wanted.items()
        ]
        probed = self.ask(combinations)
        self.runs += 1
        if probed.summary.exit_code == InterruptedRunError.exit_code:
            raise InterruptedRunError(
                "the search was interrupted", hint="What was scored is sealed; the same command goes on from there."
            )
        runtimes = probed.summary.runtimes
        self.folder, self.pair = probed.folder, f"{runtimes['rollout']}/{runtimes['training']}"
        evidence = Evidence.open(probed.folder, plugins=self.plugins, runtimes=self.pair, experiment=probed.experiment)
        rows = {row.case_id: row for row in evidence.cube.rows}
        again = {
            (tuple(sorted(row.delta)), str(row.delta), row.index): row for row in rows.values() if row.role == "repeat"
        }
        for (subset, more), case_id in zip(wanted.items(), probed.cases, strict=True):
            self.asked[subset] = more
            row = rows.get(case_id)
            if row is None:
                reason = "a constraint filters it from the plan" if not case_id else "it has no valid attempt"
                self.judged[subset] = Judged(Outcome.UNRESOLVED, reason=reason, repeatable=False)
                continue
            key = (tuple(sorted(row.delta)), str(row.delta))
            repeats = [again[*key, index] for index in range(1, more + 1) if (*key, index) in again]
            self.rows[subset] = row
            self.samples[subset] = [sample(item, evidence) for item in (row, *repeats)]

    def _answer(self, subset: Subset) -> Answer:
        samples = self.samples.get(subset)
        if samples is None:
            return Answer(self.judged[subset].outcome, final=True)
        judged = self.objective.judge(samples, self.samples[NONE])
        if subset == NONE:
            judged = of_production(self.objective, judged, samples)
            if judged.outcome is Outcome.UNRESOLVED and not judged.repeatable:
                raise _undecidable(self.objective, samples, judged)
        self.judged[subset] = judged
        same = len(samples) > 1 and len({item.bits for item in samples}) == 1 and samples[0].bits != ""
        if judged.outcome is Outcome.UNRESOLVED and same:
            said = f"{judged.reason}; {len(samples)} scorings are equal bit for bit, so repeats cannot settle it"
            self.judged[subset] = Judged(judged.outcome, judged.value, judged.interval, said, repeatable=False)
        return Answer(judged.outcome, final=not judged.repeatable or same)


def of_production(objective: Objective, judged: Judged, samples: Sequence[Sample]) -> Judged:
    """Return the outcome of the production point: against itself it reduces nothing, and equal sides need nothing."""
    if objective.kind != "reduction" or not all(item.measured for item in samples):
        return judged
    if all(item.max_abs == 0 for item in samples):
        return Judged(Outcome.MEETS, 0.0, reason="the sides are equal bit for bit: there is nothing to reduce")
    return judged if judged.interval is None else Judged(Outcome.FAILS, 0.0, reason="the production point itself")


def _undecidable(objective: Objective, samples: Sequence[Sample], judged: Judged) -> XcfgError:
    launch = {status.value for status in LAUNCH_STATUSES}
    kind = ExecutionError if any(item.status in launch for item in samples) else NotComparableError
    return kind(
        f"the objective {objective.name!r} cannot be decided at the production point: {judged.reason}",
        hint="Nothing was searched. `xcfg run` on the same file shows the production point by itself.",
    )

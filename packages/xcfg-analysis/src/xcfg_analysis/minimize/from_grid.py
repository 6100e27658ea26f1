"""Minimal sets of a grid that was already executed: nothing is scored, and nothing is claimed beyond what ran."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xcfg.errors import NothingSelectedError
from xcfg.schema.names import Role

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Cube, Row
from xcfg_analysis.minimize.atoms import Atom, make_atom
from xcfg_analysis.minimize.objective import Judged, Objective, Outcome
from xcfg_analysis.minimize.probes import of_production
from xcfg_analysis.minimize.search import NONE, Found, Subset, Trial, conclude
from xcfg_analysis.samples.sample import sample


@dataclass(frozen=True)
class Executed:
    """The sets of a grid: their atoms, the rows of each (its repeats last), and how each was judged.

    whole: the set that sets every `align` entry of the experiment; None where no case does.
    """

    atoms: tuple[Atom, ...]
    found: Found
    rows: Mapping[Subset, tuple[Row, ...]]
    judged: Mapping[Subset, Judged]
    whole: Subset | None = None


def from_grid(cube: Cube, objective: Objective, evidence: Evidence | None = None) -> Executed:
    """Return the minimal sets among the cases of `cube`; an atom is one value of one axis, as the deltas have it.

    evidence: for objectives that need the tokens (k3). Raises NothingSelectedError without a baseline.
    """
    baseline = cube.baseline
    if baseline is None:
        raise NothingSelectedError(
            f"the baseline of {cube.experiment_id!r} has no valid attempt", hint="Run the experiment first."
        )
    rows = [row for row in cube.rows if row.role in (Role.CASE.value, Role.REPEAT.value)]
    labels = list(dict.fromkeys(label for row in rows for label in _labels(row)))
    atoms = tuple(_atom(label, rows, cube) for label in labels)
    groups: dict[Subset, list[Row]] = {}
    for row in sorted(rows, key=lambda item: item.role != Role.CASE.value):
        groups.setdefault(frozenset(labels.index(label) for label in _labels(row)), []).append(row)
    samples = {subset: [sample(row, evidence) for row in group] for subset, group in groups.items()}
    judged = {
        subset: _elsewhere(groups[subset]) or objective.judge(items, samples[NONE]) for subset, items in samples.items()
    }
    judged[NONE] = of_production(objective, judged[NONE], samples[NONE])
    trials = [Trial(subset, item.outcome, len(groups[subset]) - 1) for subset, item in judged.items()]
    found = conclude("grid", len(atoms), trials)
    aligned = all_aligned(cube, rows)
    whole = None if aligned is None else frozenset(labels.index(label) for label in _labels(aligned))
    return Executed(atoms, found, {subset: tuple(group) for subset, group in groups.items()}, judged, whole)


def all_aligned(cube: Cube, rows: Sequence[Row]) -> Row | None:
    """Return the case in which every `align` entry of the experiment is set, and nothing else."""
    entries = {f"align {item['path']} to {item['to']}" for item in cube.experiment.get("align") or ()}
    cases = (row for row in rows if row.role == Role.CASE.value and row.delta)
    return next((row for row in cases if entries and set(row.label.split(", ")) == entries), None)


def _elsewhere(rows: Sequence[Row]) -> Judged | None:
    """Return that nothing follows from cases that ran in other surroundings than the production point."""
    outside = sorted({name for row in rows for name in row.outside})
    if not outside:
        return None
    reason = f"it ran in other surroundings than the production point: {', '.join(outside)}"
    return Judged(Outcome.UNRESOLVED, reason=reason, repeatable=False)


def _labels(row: Row) -> list[str]:
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in row.delta.items()]


def _atom(label: str, rows: list[Row], cube: Cube) -> Atom:
    key = next(key for row in rows for key, name in zip(row.delta, _labels(row), strict=True) if name == label)
    return make_atom(label, (key,), cube.definitions)

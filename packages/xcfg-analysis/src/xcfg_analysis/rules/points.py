"""The points of a cube that the rules speak of, each judged by one yardstick."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from xcfg.schema.names import Role, Status

from xcfg_analysis.cube.rows import Cube, Row
from xcfg_analysis.minimize.from_grid import all_aligned
from xcfg_analysis.rules.classes import ALIGNED, PAIRS, PRODUCTION, SINGLE, pair_slice

MEASURED = (Status.PASS.value, Status.MISMATCH.value)


class Outcome(str, Enum):
    """What a case says by the yardstick of the production point."""

    PASSES = "passes"
    FAILS = "fails"
    UNMEASURED = "was not measured"


@dataclass(frozen=True)
class Points:
    """The production point, the aligned reference, and the class cases between them.

    profiles: whether the run is one of `--profile`, so that its baseline is A0 and `keys` are what production changes.
    singles, pairs: class, or two classes -> its case; a class in which the sides do not differ is left out. absent:
    classes and pairs whose case the run does not hold. whole: the case that aligns everything that was declared to be
    alignable: the aligned reference, and without a profile the case of all `align` entries, which is no reference.
    """

    production: Row | None
    aligned: Row | None
    profiles: bool
    cases: tuple[Row, ...]
    keys: frozenset[str] = frozenset()
    singles: Mapping[str, Row] = field(default_factory=dict)
    pairs: Mapping[tuple[str, str], Row] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    whole: Row | None = None

    def outcome(self, row: Row | None) -> Outcome:
        """Return the outcome of `row`: largest |d| against the smaller of its own and production's threshold."""
        if row is None or row.status not in MEASURED or row.threshold is None:
            return Outcome.UNMEASURED
        edge = row.edges.get(row.verdict_edge)
        if edge is None or not edge.active_tokens or edge.max_abs is None or not math.isfinite(edge.max_abs):
            return Outcome.UNMEASURED
        limits = [row.threshold]
        if self.production is not None and self.production.threshold is not None:
            limits.append(self.production.threshold)
        return Outcome.FAILS if edge.max_abs > min(limits) else Outcome.PASSES

    @property
    def settings(self) -> frozenset[str]:
        """Every setting that some case changes relative to production, whether or not it was measured."""
        return self.keys.union(*(self.changed(row) for row in self.cases))

    def changed(self, row: Row) -> frozenset[str]:
        """Return what `row` aligns, or changes, relative to production."""
        delta = frozenset(row.delta)
        return self.keys - delta if self.profiles else delta


def find_points(cube: Cube) -> Points:
    """Return the points of a cube. Controls of the baseline are no points."""
    cases = tuple(row for row in cube.rows if row.role == Role.CASE.value)
    baseline = next((row for row in cases if not row.delta), None)
    slices = cube.experiment.get("slices") or {}
    if ALIGNED not in slices or PRODUCTION not in slices:
        # Without a profile no case is known to align everything, whatever `align` entries a file lists.
        return Points(baseline, None, False, cases, whole=all_aligned(cube, cases))
    everything = frozenset(slices[PRODUCTION])
    by_delta = {frozenset(row.delta): row for row in cases}
    singles, pairs, absent = {}, {}, []
    for name, of in SINGLE.items():
        if name in slices:
            row = by_delta.get(everything - frozenset(slices[name]))
            if row is None:
                absent.append(of)
            else:
                singles[of] = row
    for pair in PAIRS:
        name = pair_slice(pair)
        row = by_delta.get(everything - frozenset(slices[name])) if name in slices else None
        if row is not None:
            pairs[pair] = row
        elif name in slices:
            absent.append(" + ".join(pair))
    return Points(
        production=by_delta.get(everything),
        aligned=baseline,
        profiles=True,
        cases=cases,
        keys=everything,
        singles=singles,
        pairs=pairs,
        absent=tuple(absent),
        whole=baseline,
    )


def why_no_pairs(points: Points) -> str:
    """Return why the pairs of classes (A4) are not due; empty when they are."""
    produced = points.outcome(points.production)
    if produced is Outcome.UNMEASURED:
        return f"the production point (A5) {produced.value}"
    if produced is Outcome.PASSES:
        return "the production point (A5) passes, so there is no failure to explain"
    missing = [name for name in points.absent if "+" not in name]
    if missing:
        return f"the class case of {', '.join(missing)} is not in the run"
    for of, row in points.singles.items():
        outcome = points.outcome(row)
        if outcome is Outcome.FAILS:
            return f"{of} alone fails (case {row.case_id}), which is sufficient; no interaction has to be assumed"
        if outcome is Outcome.UNMEASURED:
            return f"the class case of {of} {outcome.value} ({row.status}: {row.reason or 'no reason given'})"
    if len(points.singles) < 2:
        return "the sides differ in fewer than two classes, so there is no pair"
    return ""

"""The nine diagnoses of a one-sided operator swap, from the changes that its three cases make.

Against native on both sides stand the reference on both (the self-check), on training only, and on rollout only. The
change of each is mean d^2 of its verdict edge less that of native, over the same draws of sequences. The gap grows or
shrinks where the interval of the change lies beyond the resolution and its p value, corrected by Holm over the cells of
all swaps of a run, stands. In order:

1. INSUFFICIENT_EVIDENCE: a cell did not run, ended without figures, or has too few sequences
2. VARIANT_DID_NOT_APPLY: a cell does not show that the reference ran where it was asked for
3. COUPLED_WITH_OTHER_FACTORS: a cell changed something else as well
4. REFERENCE_IS_BROKEN: the reference on both sides makes the gap larger
5. by where the gap shrinks: CAUSED_BY_TRAINING_SIDE, CAUSED_BY_ROLLOUT_SIDE, CAUSED_BY_BOTH_SIDES (each alone, or only
   together); COUPLED_WITH_OTHER_FACTORS where one side alone shrinks it and both together are shown to shrink it less;
   INSUFFICIENT_EVIDENCE where nothing is shown of both together
6. NOT_THIS_FACTOR: no bit of a swapped side moved, or every change lies inside the resolution, or a swap only makes
   the sides less alike; BELOW_RESOLUTION: there is room for a change that these sequences cannot show
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from xcfg.schema.result import Interval


class Diagnosis(str, Enum):
    """What one operator has to do with the gap."""

    VARIANT_DID_NOT_APPLY = "VARIANT_DID_NOT_APPLY"
    INSUFFICIENT_EVIDENCE = "INSUFFICIENT_EVIDENCE"
    REFERENCE_IS_BROKEN = "REFERENCE_IS_BROKEN"
    CAUSED_BY_TRAINING_SIDE = "CAUSED_BY_TRAINING_SIDE"
    CAUSED_BY_ROLLOUT_SIDE = "CAUSED_BY_ROLLOUT_SIDE"
    CAUSED_BY_BOTH_SIDES = "CAUSED_BY_BOTH_SIDES"
    COUPLED_WITH_OTHER_FACTORS = "COUPLED_WITH_OTHER_FACTORS"
    NOT_THIS_FACTOR = "NOT_THIS_FACTOR"
    BELOW_RESOLUTION = "BELOW_RESOLUTION"


TRAINING, ROLLOUT, BOTH = "training", "rollout", "both"
CELLS = (TRAINING, ROLLOUT, BOTH)


@dataclass(frozen=True)
class CellFacts:
    """One case of a swap against native on both sides. case_id: empty where it did not run.

    lacking: why there are no figures. unapplied: why the reference is not shown to have run. coupled: what else
    changed. moved: whether a swapped side's bits differ. change: of mean d^2, nats^2; None without an interval. stands:
    whether it is more than chance after the correction.
    """

    case_id: str = ""
    lacking: str = ""
    unapplied: str = ""
    coupled: tuple[str, ...] = ()
    moved: bool = True
    change: Interval | None = None
    stands: bool = True


def diagnose(cells: Mapping[str, CellFacts], *, resolution: float = 0.0) -> tuple[Diagnosis, str]:
    """Return the diagnosis of the three CELLS, and why. resolution: the largest floor of mean d^2, nats^2."""
    for name in CELLS:
        if cells[name].lacking:
            return Diagnosis.INSUFFICIENT_EVIDENCE, f"{_spelled(name)}: {cells[name].lacking}"
    for name in CELLS:
        if cells[name].unapplied:
            return Diagnosis.VARIANT_DID_NOT_APPLY, f"{_spelled(name)}: {cells[name].unapplied}"
    for name in CELLS:
        if cells[name].coupled:
            return (
                Diagnosis.COUPLED_WITH_OTHER_FACTORS,
                f"{_spelled(name)} also changes {', '.join(cells[name].coupled)}",
            )
    changes = {name: found for name in CELLS if (found := cells[name].change) is not None}
    if len(changes) < len(CELLS):
        absent = next(name for name in CELLS if name not in changes)
        return Diagnosis.INSUFFICIENT_EVIDENCE, f"{_spelled(absent)}: its change has no interval"
    grows = {name for name, found in changes.items() if cells[name].stands and found.low > resolution}
    shrinks = {name for name, found in changes.items() if cells[name].stands and found.high < -resolution}
    if BOTH in grows:
        return Diagnosis.REFERENCE_IS_BROKEN, "the reference on both sides makes the gap larger than native on both"
    if shrinks:
        return _shrunk(shrinks, changes)
    return _unmoved(cells, changes, grows, resolution)


def _shrunk(shrinks: set[str], changes: Mapping[str, Interval]) -> tuple[Diagnosis, str]:
    alone = shrinks - {BOTH}
    if BOTH not in shrinks and changes[BOTH].low <= max(changes[name].value for name in alone):
        return Diagnosis.INSUFFICIENT_EVIDENCE, (
            f"{_spelled(*sorted(alone))} makes the gap smaller, and of the reference on both sides these sequences "
            "show neither that it does nor that it does not"
        )
    if BOTH not in shrinks:
        return Diagnosis.COUPLED_WITH_OTHER_FACTORS, (
            f"{_spelled(*sorted(alone))} makes the gap smaller, and the reference on both sides does not"
        )
    if alone == {TRAINING}:
        return (
            Diagnosis.CAUSED_BY_TRAINING_SIDE,
            "the gap shrinks with the reference on training; with it on rollout that is not shown",
        )
    if alone == {ROLLOUT}:
        return (
            Diagnosis.CAUSED_BY_ROLLOUT_SIDE,
            "the gap shrinks with the reference on rollout; with it on training that is not shown",
        )
    how = "on either side alone" if alone else "on both sides together only"
    return Diagnosis.CAUSED_BY_BOTH_SIDES, f"the gap shrinks with the reference {how}"


def _unmoved(
    cells: Mapping[str, CellFacts], changes: Mapping[str, Interval], grows: set[str], resolution: float
) -> tuple[Diagnosis, str]:
    if not any(cells[name].moved for name in CELLS):
        return Diagnosis.NOT_THIS_FACTOR, "the reference gives the same bits on either side"
    if all(-resolution <= found.low and found.high <= resolution for found in changes.values()):
        return Diagnosis.NOT_THIS_FACTOR, "every change of the gap lies inside the resolution"
    if grows:
        return (
            Diagnosis.NOT_THIS_FACTOR,
            "no swap makes the gap smaller; one on one side only makes the sides less alike",
        )
    return Diagnosis.BELOW_RESOLUTION, "scores move, and these sequences show no change of the gap"


def _spelled(*names: str) -> str:
    return "reference on " + " and ".join("both sides" if name == BOTH else f"{name} only" for name in names)

"""The swaps that a cube holds: per operation and reference backend its four cells, and the diagnosis of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from xcfg.schema.analysis import Cause
from xcfg.schema.names import Applied, Exercised, Side
from xcfg.schema.result import Interval

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Cube, Row
from xcfg_analysis.effects.bootstrap import draws_for
from xcfg_analysis.effects.holm import adjusted
from xcfg_analysis.samples.interval import IntervalRule, estimated_mean
from xcfg_analysis.samples.sample import SQUARES, TOKENS, Sample, sample
from xcfg_analysis.swaps.diagnosis import BOTH, CELLS, ROLLOUT, TRAINING, CellFacts, Diagnosis, diagnose

SHORTCUT = "logp.backend"
SHORTCUT_OF = "selected_logprob"
SIDES = {
    TRAINING: (Side.TRAINING.value,),
    ROLLOUT: (Side.ROLLOUT.value,),
    BOTH: (Side.ROLLOUT.value, Side.TRAINING.value),
}


@dataclass(frozen=True)
class Swap:
    """One operation, one backend in the place of native, and what the swap says. native: the baseline's case id.

    p_values: of the cells with a change, corrected over the cells of all swaps.
    """

    operation: str
    backend: str
    native: str
    cells: dict[str, CellFacts]
    diagnosis: Diagnosis
    says: str
    p_values: dict[str, float] = field(default_factory=dict)

    @property
    def cause(self) -> Cause:
        """The swap as an entry of an analysis; its effect is the change of mean d^2 on the side that causes it."""
        sides = {
            Diagnosis.CAUSED_BY_TRAINING_SIDE: TRAINING,
            Diagnosis.CAUSED_BY_ROLLOUT_SIDE: ROLLOUT,
            Diagnosis.CAUSED_BY_BOTH_SIDES: BOTH,
        }
        side = sides.get(self.diagnosis, "")
        change = self.cells[side or BOTH].change
        return Cause(
            knob=f"operators.{self.operation}",
            side=side,
            diagnosis=self.diagnosis.value,
            effect=None if change is None else change.value,
            interval=change,
            evidence=tuple(item for item in (self.native, *(self.cells[name].case_id for name in CELLS)) if item),
            value=self.backend,
            quantity="mean_sq",
            p_value=self.p_values.get(side or BOTH),
            says=self.says,
        )


def find_swaps(
    cube: Cube, evidence: Evidence | None = None, *, rule: IntervalRule | None = None, resolution: float = 0.0
) -> tuple[Swap, ...]:
    """Return every swap of which the cube holds a cell beside the baseline.

    resolution: the largest floor of mean d^2, nats^2. evidence: reads the tokens in place of the figures by sequence.
    """
    baseline = cube.baseline
    if baseline is None:
        return ()
    wanted: dict[tuple[str, str], dict[str, Row]] = {}
    for row in cube.cases:
        found = _cell_of(row, baseline)
        if found is not None:
            operation, backend, name = found
            wanted.setdefault((operation, backend), {}).setdefault(name, row)
    ground = sample(baseline, evidence)
    used = rule or IntervalRule()
    draws = draws_for(sum(map(len, wanted.values())), used.level)
    facts: dict[tuple[str, str], dict[str, CellFacts]] = {}
    chances: dict[tuple[str, str, str], float] = {}
    for (operation, backend), rows in sorted(wanted.items()):
        for name, row in rows.items():
            cell, p = _facts(row, name, operation, baseline, ground, evidence, used, draws)
            facts.setdefault((operation, backend), {})[name] = cell
            if p is not None:
                chances[operation, backend, name] = p
    corrected = dict(zip(chances, adjusted(list(chances.values())), strict=True))
    return tuple(
        _swap(
            *place,
            cells,
            {name: corrected[*place, name] for name in cells if (*place, name) in corrected},
            baseline.case_id,
            alpha=1.0 - used.level,
            resolution=resolution,
        )
        for place, cells in facts.items()
    )


def _cell_of(row: Row, baseline: Row) -> tuple[str, str, str] | None:
    """Return (operation, backend, cell) of a row that changes one operator to one backend, and nothing else."""
    paths = {key.partition("@")[0] for key in row.delta}
    changed = [
        (key.split(".")[1], key.split(".")[2], cell.requested)
        for key, cell in row.axes.items()
        if key.startswith("operators.") and key in baseline.axes and cell.requested != baseline.axes[key].requested
    ]
    if not changed or len({(operation, backend) for operation, _, backend in changed}) != 1:
        return None
    operation, _, backend = changed[0]
    own = {f"operators.{operation}.{side}" for side in (Side.ROLLOUT.value, Side.TRAINING.value)}
    if not paths <= own | ({SHORTCUT} if operation == SHORTCUT_OF else set()):
        return None
    sides = tuple(sorted(side for _, side, _ in changed))
    return operation, str(backend), next(name for name, those in SIDES.items() if tuple(sorted(those)) == sides)


def _swap(
    operation: str,
    backend: str,
    measured: dict[str, CellFacts],
    p_values: dict[str, float],
    native: str,
    *,
    alpha: float,
    resolution: float,
) -> Swap:
    cells = {
        name: replace(measured[name], stands=p_values.get(name, 1.0) <= alpha)
        if name in measured
        else CellFacts(lacking="it did not run")
        for name in CELLS
    }
    diagnosis, says = diagnose(cells, resolution=resolution)
    return Swap(operation, backend, native, cells, diagnosis, says, p_values)


def _facts(
    row: Row,
    name: str,
    operation: str,
    baseline: Row,
    ground: Sample,
    evidence: Evidence | None,
    rule: IntervalRule,
    draws: int,
) -> tuple[CellFacts, float | None]:
    """Return the facts of a cell, and the p value of its change before any correction."""
    mine = sample(row, evidence)
    unapplied = _unapplied(row, name, operation)
    coupled = tuple(_coupled(row))
    bad = next((item for item in (ground, mine) if not item.measured), None)
    if bad is not None:
        lacking = f"{'it' if bad is mine else 'native on both sides'} ended {bad.status}"
        lacking += f": {bad.reason}" if bad.reason else ""
        return CellFacts(row.case_id, "" if unapplied else lacking, unapplied, coupled), None
    if row.verdict_edge != baseline.verdict_edge or not np.array_equal(mine.sums[:, TOKENS], ground.sums[:, TOKENS]):
        other = "it was compared on other tokens than native on both sides"
        return CellFacts(row.case_id, other, unapplied, coupled), None
    found = estimated_mean(mine.sums[:, SQUARES] - ground.sums[:, SQUARES], mine.sums[:, TOKENS], rule, draws=draws)
    if isinstance(found, str):
        return CellFacts(row.case_id, found, unapplied, coupled, _moved(row, baseline, name)), None
    change = Interval(value=found.value, low=found.low, high=found.high)
    return CellFacts(row.case_id, "", unapplied, coupled, _moved(row, baseline, name), change), found.p


def _unapplied(row: Row, name: str, operation: str) -> str:
    for side in SIDES[name]:
        cell = row.axes.get(f"operators.{operation}.{side}")
        if cell is None or cell.status != Applied.APPLIED.value:
            said = cell.status if cell is not None and cell.status else "nothing"
            return f"the {side} side reports {said} for operators.{operation}"
        if cell.exercised == Exercised.NO.value:
            return f"the {side} side did not call operators.{operation}"
    return ""


def _coupled(row: Row) -> Iterable[str]:
    own = {key.partition("@")[0] for key in row.delta}
    for change in (*row.coupled, *row.undeclared):
        path = str(change.get("path", ""))
        if path not in own and path != SHORTCUT:
            yield f"{path} on {change.get('side', 'a side')}"
    yield from row.outside


def _moved(row: Row, baseline: Row, name: str) -> bool:
    arms = {TRAINING: ("training",), ROLLOUT: (row.verdict_arm,), BOTH: ("training", row.verdict_arm)}[name]
    return any(
        arm not in row.arms or arm not in baseline.arms or row.arms[arm].digest != baseline.arms[arm].digest
        for arm in arms
    )

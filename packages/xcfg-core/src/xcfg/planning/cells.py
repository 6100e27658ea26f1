"""One cell of the grid: which axes leave the baseline, what the engines are then asked for, and its delta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xcfg.errors import ConfigError
from xcfg.planning.alignment import aligned
from xcfg.planning.axes import PlanAxis
from xcfg.planning.baseline import SELECTED_LOGPROB, Baseline
from xcfg.planning.constraints import Constraints, Refusal
from xcfg.planning.effective import Effective, Pair
from xcfg.planning.normalise import SIDES, same, same_choice, two_sided
from xcfg.plugin.builtin.knobs import LOGP_BACKEND
from xcfg.schema.codec import plain as to_plain
from xcfg.schema.operators import OperatorChoice

Cell = tuple[int, ...]
"""One level per axis; 0 is the baseline."""

INEFFECTIVE = "INEFFECTIVE_KNOB"


@dataclass(frozen=True)
class Built:
    """A cell worked out. declared: the keys that it may differ in; refusal: why it is no case."""

    label: str
    effective: Effective
    delta: dict[str, Any]
    declared: frozenset[str]
    refusal: Refusal | None = None


@dataclass(frozen=True)
class Grid:
    """The axes over one baseline, under constraints."""

    axes: tuple[PlanAxis, ...]
    baseline: Baseline
    constraints: Constraints
    source: str

    def build(self, cell: Cell) -> Built:
        """Return what `cell` asks for. An align entry without a counterpart in this cell is a refusal."""
        changed = [(axis, level) for axis, level in zip(self.axes, cell, strict=True) if level]
        label = ", ".join(axis.label(level) for axis, level in changed) or "baseline"
        declared = frozenset(key for axis, _ in changed for key in _declares(axis))
        try:
            effective, delta = self._apply(changed)
        except ConfigError as error:
            if len(changed) == 1:
                raise
            return Built(label, self.baseline.effective, {}, declared, Refusal("NOT_ALIGNABLE", error.message))
        refusal = _ineffective(changed, effective) or self.constraints.check(effective)
        return Built(label, effective, delta, declared, refusal)

    def allows(self, cell: Cell) -> bool:
        """Whether `cell` is a case."""
        return self.build(cell).refusal is None

    def _apply(self, changed: list[tuple[PlanAxis, int]]) -> tuple[Effective, dict[str, Any]]:
        knobs: dict[str, Pair] = dict(self.baseline.effective.knobs)
        delta: dict[str, Any] = {}
        # A one-sided value stands on top of a value for both sides, and an alignment on top of all values.
        for axis, level in sorted(changed, key=lambda item: item[0].side is not None):
            if axis.alignment is None:
                chosen = axis.levels[level - 1]
                delta[axis.key] = _written(chosen)
                if not isinstance(chosen, OperatorChoice):
                    knobs[axis.path] = _with_side(knobs[axis.path], axis.side, chosen)
        for axis, _ in changed:
            if axis.alignment is not None:
                pairs = aligned(axis.alignment, knobs, self.source)
                delta |= _difference(axis, knobs, pairs)
                knobs |= pairs
        return Effective(knobs=knobs, operators=self._operators(changed, knobs)), delta

    def _operators(
        self, changed: list[tuple[PlanAxis, int]], knobs: dict[str, Pair]
    ) -> dict[str, dict[str, OperatorChoice]]:
        operators = {name: dict(sides) for name, sides in self.baseline.effective.operators.items()}
        for side, value in zip(SIDES, knobs[LOGP_BACKEND], strict=True):
            if side not in self.baseline.explicit:
                operators[SELECTED_LOGPROB][side] = OperatorChoice(backend=str(value))
        for axis, level in changed:
            chosen = axis.levels[level - 1]
            if isinstance(chosen, OperatorChoice):
                _, operation, side = axis.path.split(".")
                operators[operation][side] = chosen
        return operators


def _declares(axis: PlanAxis) -> tuple[str, ...]:
    return axis.alignment.paths if axis.alignment else (axis.key,)


def _written(value: Any) -> Any:
    """Return a level as a delta holds it: an operator without options is its id."""
    if isinstance(value, OperatorChoice):
        return to_plain(value) if value.options else value.backend
    return value


def _with_side(pair: Pair, side: str | None, value: Any) -> Pair:
    if side is None:
        return value, value
    return (value, pair[1]) if side == "rollout" else (pair[0], value)


def _difference(axis: PlanAxis, before: dict[str, Pair], after: dict[str, Pair]) -> dict[str, Any]:
    """Return the delta entries that an alignment adds: the values that it changed."""
    alignment = axis.alignment
    both = alignment is not None and two_sided(alignment.rollout)
    delta: dict[str, Any] = {}
    for path, pair in after.items():
        moved = [side for side, old, new in zip(SIDES, before[path], pair, strict=True) if not same(old, new)]
        if both and len(moved) == 1:
            delta[f"{path}@{moved[0]}"] = pair[SIDES.index(moved[0])]
        elif moved:
            delta[path] = pair[0]
    return delta


def _ineffective(changed: list[tuple[PlanAxis, int]], effective: Effective) -> Refusal | None:
    """Return a refusal where another axis of the cell undid a declared value, so that it changes nothing."""
    overruled = {axis.key for axis, _ in changed if axis.side is not None or axis.is_operator}
    for axis, level in changed:
        if axis.alignment is not None:
            continue
        value = axis.levels[level - 1]
        if isinstance(value, OperatorChoice):
            _, operation, side = axis.path.split(".")
            lost = not same_choice(effective.operators[operation][side], value)
        else:
            lost = _lost(axis, value, effective, overruled)
        if lost:
            return Refusal(INEFFECTIVE, f"{axis.key!r} changes nothing here: the other axes of the cell overrule it")
    return None


def _lost(axis: PlanAxis, value: Any, effective: Effective, overruled: set[str]) -> bool:
    sides = SIDES if axis.side is None else (axis.side,)
    free = [side for side in sides if axis.side is not None or f"{axis.path}@{side}" not in overruled]
    if axis.path == LOGP_BACKEND:
        free = [side for side in free if f"operators.{SELECTED_LOGPROB}.{side}" not in overruled]
    held = effective.knobs[axis.path]
    return not free or any(not same(held[SIDES.index(side)], value) for side in free)

"""What every case of a run changes, judged together: movement, change of the gap, and what may be said of it.

Only a change of the gap names a cause: independent errors add in squares, so that a setting may move nearly every value
of its side and leave the gap where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from xcfg.schema.analysis import Effect, GapChange, Movement
from xcfg.schema.codec import evolve
from xcfg.schema.names import Status
from xcfg.schema.result import Interval

from xcfg_analysis.cube.load import Evidence, Float
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.effects.bootstrap import Estimate, draws_for, estimates
from xcfg_analysis.effects.exercised import exercised_of
from xcfg_analysis.effects.holm import adjusted
from xcfg_analysis.effects.movement import movements
from xcfg_analysis.effects.per_sequence import QUANTITIES, edge_sums, is_same_tokens, means
from xcfg_analysis.effects.sides import side_of_effect
from xcfg_analysis.effects.yardstick import over, yardstick

NOT_COMPARABLE = "NOT_COMPARABLE"
RAN = (
    Status.INVALID_IDENTITY.value,
    Status.INVALID_ARTIFACT.value,
    Status.NOT_COMPARABLE.value,
    Status.ZERO_ACTIVE_TOKENS.value,
    Status.EMPTY_JOIN.value,
)
"""Statuses of a case that ran as asked and is still no evidence: none of its settings is acquitted."""


@dataclass(frozen=True)
class Effects:
    """The effects of all cases in the order of the plan. family: tests that the correction was made over."""

    effects: tuple[Effect, ...]
    family: int


@dataclass
class _Found:
    """A case on its way to its effect. sums: of its verdict edge, float64 [S, 4]; None where it has no figures."""

    row: Row
    sums: Float | None
    equal: bool
    movement: tuple[Movement, ...]
    estimates: dict[str, Estimate] = field(default_factory=dict)
    adjusted: dict[str, float] = field(default_factory=dict)


def verdict_sums(evidence: Evidence, row: Row) -> Float | None:
    """Return the per-sequence sums of a row's verdict edge, float64 [S, 4], or None where it has no figures."""
    found = evidence.difference(row, row.verdict_edge) if row.verdict_edge else None
    return None if found is None else edge_sums(*found, evidence.sequence, evidence.sequences)


def effects(evidence: Evidence, baseline: Row, rows: Sequence[Row], resolution: dict[str, float]) -> Effects:
    """Return the effect of every row against `baseline`.

    resolution: quantity -> largest floor; empty where no control was measured. Level, seed and the smallest number of
    sequences are those of the contract that judged the run.
    """
    rule = evidence.run.contract.assessment
    ground = verdict_sums(evidence, baseline)
    found = [_found(evidence, row, baseline) for row in rows]
    tested = [item for item in found if ground is not None and _is_testable(item, ground)]
    family = 0
    if ground is not None and int(np.count_nonzero(ground[:, 0])) >= rule.min_sequences:
        family = _estimate(tested, ground, rule.level, rule.seed)
    judged = tuple(_effect(evidence, item, baseline, ground, resolution, 1.0 - rule.level) for item in found)
    return Effects(judged, family)


def _found(evidence: Evidence, row: Row, baseline: Row) -> _Found:
    """Return a case as it is judged. Without figures it has no movement: nothing says that both scored one input."""
    sums = verdict_sums(evidence, row)
    moved = () if sums is None else movements(evidence, row, baseline)
    return _Found(row=row, sums=sums, equal=is_equal(row, baseline), movement=moved)


def is_equal(row: Row, baseline: Row) -> bool:
    """Whether both arms of the verdict edge hold the same bits in both rows."""
    arms = ("training", row.verdict_arm)
    return row.verdict_arm == baseline.verdict_arm and all(
        arm in row.arms and arm in baseline.arms and row.arms[arm].digest == baseline.arms[arm].digest for arm in arms
    )


def _is_testable(item: _Found, ground: Float) -> bool:
    return item.sums is not None and not item.equal and not item.row.outside and is_same_tokens(item.sums, ground)


def _estimate(tested: Sequence[_Found], ground: Float, level: float, seed: int) -> int:
    """Fill in estimates and corrected p values of every case and quantity; return the size of the family."""
    places, columns = [], []
    for item in tested:
        for at, quantity in enumerate(QUANTITIES):
            change = (ground if item.sums is None else item.sums)[:, at + 1] - ground[:, at + 1]
            if bool(np.isfinite(change).all()):
                places.append((item, quantity))
                columns.append(change)
    if not columns:
        return 0
    draws = draws_for(len(columns), level)
    values = estimates(np.stack(columns, axis=1), ground[:, 0], level=level, seed=seed, draws=draws)
    corrected = adjusted([value.p for value in values])
    for (item, quantity), value, p in zip(places, values, corrected, strict=True):
        item.estimates[quantity], item.adjusted[quantity] = value, p
    return len(columns)


def _effect(
    evidence: Evidence, item: _Found, baseline: Row, ground: Float | None, resolution: dict[str, float], alpha: float
) -> Effect:
    row = item.row
    limit = yardstick(row, baseline)
    edge = row.edges.get(row.verdict_edge)
    exercised, why = exercised_of(row, baseline)
    effect = Effect(
        case_id=row.case_id,
        label=row.label,
        knobs=tuple(row.delta),
        side=side_of_effect(row, baseline, evidence.cube.definitions),
        outcome="",
        exercised=exercised,
        yardstick=limit,
        over=over(evidence, row, limit),
        baseline_over=over(evidence, baseline, limit),
        tokens=0 if edge is None else edge.active_tokens,
        movement=item.movement,
        gap=_gap(item, ground),
        coupled=tuple(sorted({f"{change.get('path')}@{change.get('side', '*')}" for change in row.coupled})),
    )
    outcome, reason = _outcome(item, effect, ground, resolution, alpha, why)
    if outcome == "EXONERATED" and row.status in RAN:
        outcome, reason = NOT_COMPARABLE, _ended(row)
    return evolve(effect, outcome=outcome, reason=reason, direction=_direction(effect, alpha))


def _gap(item: _Found, ground: Float | None) -> tuple[GapChange, ...]:
    if item.sums is None or ground is None:
        return ()
    before, after = means(ground), means(item.sums)
    changes = []
    for quantity in QUANTITIES:
        if not (np.isfinite(before[quantity]) and np.isfinite(after[quantity])):
            continue
        found = item.estimates.get(quantity)
        interval = Interval(value=0.0, low=0.0, high=0.0) if item.equal else None
        if found is not None and found.bounded:
            interval = Interval(value=found.value, low=found.low, high=found.high)
        changes.append(
            GapChange(
                quantity=quantity,
                baseline=before[quantity],
                case=after[quantity],
                change=interval,
                p_value=None if found is None else found.p,
                p_adjusted=item.adjusted.get(quantity),
            )
        )
    return tuple(changes)


def _outcome(
    item: _Found, effect: Effect, ground: Float | None, resolution: dict[str, float], alpha: float, unexercised: str
) -> tuple[str, str]:
    row = item.row
    if item.sums is None:
        return NOT_COMPARABLE if row.status in RAN else "VARIANT_DID_NOT_APPLY", _ended(row)
    if ground is None:
        return "VARIANT_DID_NOT_APPLY", "the baseline has no figures"
    if item.equal:
        if effect.exercised != "yes":
            return "NOT_EXERCISED", unexercised
        return "EXONERATED", "both sides hold the same bits as in the baseline"
    if row.outside:
        return "OUTSIDE_THE_KNOBS", f"{', '.join(row.outside)} differ from the baseline and no knob declares them"
    if not is_same_tokens(item.sums, ground):
        return "OUTSIDE_THE_KNOBS", "the verdict edge has other tokens than the baseline's"
    if not item.estimates or all(change.change is None for change in effect.gap):
        tokens = int(np.count_nonzero(ground[:, 0]))
        return "INSUFFICIENT_EVIDENCE", f"{tokens} sequences carry too little of the change for an interval"
    return _tested(effect, resolution, alpha, unexercised)


def _ended(row: Row) -> str:
    return f"{row.status}: {row.reason}"


def _tested(effect: Effect, resolution: dict[str, float], alpha: float, unexercised: str) -> tuple[str, str]:
    clear = clear_changes(effect, alpha)
    large = [change for change in clear if abs(_value(change)) > resolution.get(change.quantity, 0.0)]
    if large:
        if effect.coupled:
            return "COUPLED_WITH_OTHER_FACTORS", f"{', '.join(effect.coupled)} changed with it"
        return "CHANGES_GAP", ""
    if resolution and all(_is_within(change, resolution) for change in effect.gap):
        if effect.exercised != "yes":
            return "NOT_EXERCISED", unexercised
        return "EXONERATED", "every interval of the change lies within the floor"
    if resolution and all(abs(_value(change)) <= resolution.get(change.quantity, 0.0) for change in effect.gap):
        return "BELOW_RESOLUTION", "no change is larger than the largest floor"
    if effect.exercised == "no":
        return "NOT_EXERCISED", unexercised
    return "NO_CHANGE_SHOWN", bound_of(effect)


def bound_of(effect: Effect) -> str:
    """Return in words how much of mean d^2 a case can take away at most, by its interval; empty without one."""
    squares = next((item for item in effect.gap if item.quantity == "mean_sq"), None)
    if squares is None or squares.change is None or squares.baseline <= 0:
        return ""
    share = min(1.0, max(0.0, -squares.change.low / squares.baseline))
    return f"at most {share:.2g} of mean d^2 goes away with it"


def clear_changes(effect: Effect, alpha: float) -> list[GapChange]:
    """Return the changes of the gap that stand after the correction, the clearest first."""
    clear = [item for item in effect.gap if item.change is not None and (item.p_adjusted or 0.0) <= alpha]
    stands = [item for item in clear if item.p_adjusted is not None]
    return sorted(stands, key=lambda item: (item.p_adjusted or 0.0, QUANTITIES.index(item.quantity)))


def _direction(effect: Effect, alpha: float) -> str:
    clear = clear_changes(effect, alpha)
    if not clear:
        return ""
    signs = {_value(change) < 0 for change in clear}
    if len(signs) > 1:
        return "mixed"
    return "narrows" if signs == {True} else "widens"


def _value(change: GapChange) -> float:
    return change.change.value if change.change is not None else change.case - change.baseline


def _is_within(change: GapChange, resolution: dict[str, float]) -> bool:
    limit = resolution.get(change.quantity)
    if change.change is None or limit is None:
        return False
    return -limit <= change.change.low and change.change.high <= limit

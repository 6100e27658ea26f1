"""From the effects of cases to what is said of knobs: causes first, and every other knob in exactly one list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xcfg.schema.analysis import Cause, Effect, GapChange
from xcfg.schema.names import Assessment

from xcfg_analysis.cube.rows import Row
from xcfg_analysis.effects.effect import clear_changes
from xcfg_analysis.effects.sides import side_of_key

DIAGNOSES = {
    "training": "CAUSED_BY_TRAINING_SIDE",
    "rollout": "CAUSED_BY_ROLLOUT_SIDE",
    "both": "CAUSED_BY_BOTH_SIDES",
    "": "INSUFFICIENT_EVIDENCE",
}
MANIFOLD = 10.0
"""From this many times as large on, a change is a factor."""
COUPLED = "COUPLED_WITH_OTHER_FACTORS"
NAMES = {"mean_sq": "mean d^2", "mean_abs": "mean |d|", "k3": "k3"}
UNITS = {"mean_sq": "nats^2", "mean_abs": "nats", "k3": "nats"}
LISTS = {
    "EXONERATED": "exonerated",
    "NOT_EXERCISED": "not_exercised",
    "BELOW_RESOLUTION": "below_resolution",
    "NO_CHANGE_SHOWN": "unresolved",
    "INSUFFICIENT_EVIDENCE": "unresolved",
    "OUTSIDE_THE_KNOBS": "not_measured",
    "VARIANT_DID_NOT_APPLY": "not_measured",
    "NOT_COMPARABLE": "not_comparable",
}
"""Outcome of a case -> the list of an analysis in which its knob stands."""
EXCESS = (
    Assessment.EXCESS_TRAINING.value,
    Assessment.EXCESS_ROLLOUT.value,
    Assessment.EXCESS_GAP.value,
    Assessment.BIASED.value,
)
ORDER = ("unresolved", "below_resolution", "not_exercised", "not_measured", "not_comparable", "exonerated")
"""Of a knob with several values the least certain outcome decides, so that none is exonerated by half of its values."""


@dataclass(frozen=True)
class Said:
    """Causes, clearest first; list name -> axis keys."""

    causes: tuple[Cause, ...]
    lists: dict[str, tuple[str, ...]]


def say(
    effects: Sequence[Effect],
    baseline: Row,
    definitions: Mapping[str, Mapping[str, Any]],
    alpha: float,
    *,
    profiles: bool = False,
    acquitted: bool = False,
) -> Said:
    """Return what the cases that change one axis say of it.

    What opens the gap further than production has it made none of production's gap, and has no diagnosis. profiles:
    the cases put production's values into the aligned reference, so there it is what narrows the gap. acquitted:
    production passes and rounding explains it, so that nothing that moves the gap is to blame for anything.

    A cell of several axes names a cause of its own where none of them is named alone, and where it narrows the gap
    and none of them does: each alone may open it, and only all together close it.
    """
    other = ("narrows", "widens") if acquitted else ("narrows",) if profiles else ("widens",)
    alone = [item for item in effects if len(item.knobs) == 1]
    causes = [cause for item in alone if (cause := _cause(item, baseline, definitions, alpha, other))]
    named = {cause.knob for cause in causes}
    narrow = {cause.knob for cause in causes if cause.direction == "narrows"}
    for item in effects:
        told = narrow if item.direction == "narrows" else named
        if len(item.knobs) > 1 and not told.intersection(item.knobs):
            causes += [cause] if (cause := _cause(item, baseline, definitions, alpha, other)) else []
    found: dict[str, set[str]] = {}
    for item in alone:
        (knob,) = item.knobs
        if knob not in named and item.outcome in LISTS:
            found.setdefault(knob, set()).add(LISTS[item.outcome])
    lists: dict[str, list[str]] = {name: [] for name in ORDER}
    for knob, names in found.items():
        lists[next(name for name in ORDER if name in names)].append(knob)
    return Said(tuple(_sorted(causes)), {name: tuple(knobs) for name, knobs in lists.items()})


def _cause(
    effect: Effect, baseline: Row, definitions: Mapping[str, Mapping[str, Any]], alpha: float, other: Sequence[str]
) -> Cause | None:
    clear = clear_changes(effect, alpha)
    if effect.outcome not in ("CHANGES_GAP", COUPLED) or not clear:
        return None
    # Mean d^2 adds over independent origins, so it is what is shown wherever it stands.
    shown = next((item for item in clear if item.quantity == "mean_sq"), clear[0])
    side = effect.side if len(effect.knobs) > 1 else side_of_key(effect.knobs[0], definitions) or effect.side
    return Cause(
        knob=" + ".join(effect.knobs),
        side=side,
        diagnosis=COUPLED if effect.outcome == COUPLED else "" if effect.direction in other else DIAGNOSES[side],
        effect=shown.change.value if shown.change is not None else None,
        interval=shown.change,
        evidence=(baseline.case_id, effect.case_id),
        value=effect.label.partition("=")[2] or effect.label,
        quantity=shown.quantity,
        direction=effect.direction,
        p_value=shown.p_adjusted,
        says=says(effect, shown),
        refuted_by=_refuted_by(effect, shown),
    )


def says(effect: Effect, change: GapChange) -> str:
    """Return one sentence with the change of the gap, its interval and its corrected p value."""
    name, unit = NAMES[change.quantity], UNITS[change.quantity]
    share = f" ({_share(change.case / change.baseline)})" if change.baseline > 0 else ""
    bounds = "" if change.change is None else f", change {change.change.low:.3g} to {change.change.high:.3g} {unit}"
    held = (
        f"; {effect.over} instead of {effect.baseline_over} tokens over {effect.yardstick:g}"
        if effect.yardstick
        else ""
    )
    corrected = "" if change.p_adjusted is None else f", corrected p {change.p_adjusted:.2g}"
    return f"{effect.label}: {name} {change.baseline:.4g} -> {change.case:.4g} {unit}{share}{bounds}{corrected}{held}"


def _share(ratio: float) -> str:
    """Return a change in percent, or as a factor where percent would only be digits: the baseline is nearly 0."""
    return f"{ratio - 1.0:+.0%}" if ratio < MANIFOLD else f"{ratio:.3g} times as large"


def _refuted_by(effect: Effect, change: GapChange) -> str:
    turn = {"narrows": "smaller", "widens": "larger"}.get(effect.direction, "different")
    other = f"; {', '.join(effect.coupled)} changed with it and may be the cause instead" if effect.coupled else ""
    return (
        f"the same two cases on other frozen sequences, if {NAMES[change.quantity]} is not {turn} there with "
        f"{effect.label}{other}"
    )


def is_blamed(cause: Cause, *, profiles: bool) -> bool:
    """Whether a cause makes a part of production's gap; a coupled one that only opens it further does not."""
    return bool(cause.diagnosis) and (
        cause.diagnosis != COUPLED or cause.direction == ("widens" if profiles else "narrows")
    )


def is_excess(row: Row) -> bool:
    """Whether rounding does not explain the gap of a row."""
    return row.assessment is not None and row.assessment.assessment in EXCESS


def _sorted(causes: Sequence[Cause]) -> list[Cause]:
    """Return what narrows the gap first, then by the size of the change; coupled cases last."""
    return sorted(
        causes,
        key=lambda cause: (cause.diagnosis == COUPLED, cause.direction != "narrows", -abs(cause.effect or 0.0)),
    )

"""The page of a run for a person who is tired: what happened, why, what it was not, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from xcfg.schema.analysis import Analysis, Cause, Effect, Floor, Interaction
from xcfg.schema.result import AssessmentResult

from xcfg_analysis.cube.table import aligned
from xcfg_analysis.page.causes import NAMES
from xcfg_analysis.show import number, wrapped

LISTS = (
    ("exonerated", "exercised, and without an effect on the gap"),
    ("unresolved", "moved its side; no change of the gap was shown"),
    ("below_resolution", "no larger than what repeating the baseline gives"),
    ("not_exercised", "the run gave it nothing to do, or nobody knows"),
    ("not_measured", "did not run as asked, or in other surroundings"),
)


def text(found: Analysis) -> str:
    """Return the page for a terminal."""
    blocks = [_head(found), _causes(found.causes)]
    blocks += [
        _lists(found),
        _swaps(found.swaps),
        _effects(found.effects),
        _interactions(found.interactions),
        _floors(found.floors),
    ]
    blocks.append(_end(found))
    return "\n\n".join(block for block in blocks if block)


def _head(found: Analysis) -> str:
    lines = [f"{found.experiment_id}: {found.recognised}"]
    judged = "not judged" if found.threshold is None else f"{found.mismatches} over {number(found.threshold)} nats"
    lines.append(f"VERDICT    {found.status}; {found.tokens} tokens in {found.sequences} sequences, {judged}")
    lines.append(f"ASSESSMENT {found.assessment}{_ratios(found.assessed)}")
    lines += wrapped("", found.conclusion, indent=0)
    return "\n".join(lines)


def _ratios(assessed: AssessmentResult | None) -> str:
    if assessed is None or assessed.r_gap is None:
        return f": {assessed.reason}" if assessed is not None and assessed.reason else ""
    named = (("training", assessed.r_training), ("rollout", assessed.r_rollout), ("gap", assessed.r_gap))
    shown = ", ".join(f"{name} {item.value:.2f} ({item.low:.2f} to {item.high:.2f})" for name, item in named if item)
    return f"; error over rounding budget: {shown}"


def _causes(causes: Sequence[Cause]) -> str:
    lines = []
    for cause in causes:
        lines.append(
            f"{'CAUSE' if cause.direction == 'narrows' else 'EFFECT'} {cause.knob} ({cause.side}): {cause.diagnosis}"
        )
        lines += wrapped("what", cause.says)
        lines += wrapped("evidence", ", ".join(cause.evidence))
        lines += wrapped("refuted by", cause.refuted_by)
    return "\n".join(lines)


def _lists(found: Analysis) -> str:
    lines: list[str] = []
    for name, meaning in LISTS:
        knobs = getattr(found, name)
        if knobs:
            lines += wrapped("", f"{name.replace('_', ' ')} ({meaning}): {', '.join(knobs)}", indent=0)
    if found.not_varied:
        meaning = "the sides differ in it, and no case changes it"
        lines += wrapped("", f"not varied ({meaning}): {', '.join(found.not_varied)}", indent=0)
    for item in found.outside:
        lines += wrapped("", f"outside the declared knobs: {item}", indent=0)
    for item in found.findings:
        lines += wrapped("", f"FINDING {item}", indent=0)
    return "\n".join(lines)


def _swaps(swaps: Sequence[Cause]) -> str:
    lines: list[str] = []
    for item in swaps:
        change = "" if item.effect is None else f"; mean d^2 changes by {number(item.effect)} nats^2"
        words = f"SWAP {item.knob} to {item.value}: {item.diagnosis}: {item.says}{change}"
        lines += wrapped("", words, indent=0)
    return "\n".join(lines)


def _effects(effects: Sequence[Effect]) -> str:
    if not effects:
        return ""
    rows = [("case", "outcome", "moved", "rms moved", "change of mean d^2", "p, corrected", "over")]
    for item in effects:
        moved = max(item.movement, key=lambda one: one.rms, default=None)
        gap = next((one for one in item.gap if one.quantity == "mean_sq"), None)
        change = gap.change if gap is not None else None
        rows.append(
            (
                item.label,
                item.outcome,
                "-" if moved is None else f"{moved.differing}/{moved.tokens}",
                "-" if moved is None else number(moved.rms),
                "-" if change is None else f"{change.value:+.3g} ({change.low:.2g} to {change.high:.2g})",
                "-" if gap is None else number(gap.p_adjusted),
                "-" if item.over is None else f"{item.over} of {item.tokens} > {number(item.yardstick)}",
            )
        )
    return "each case against the baseline\n" + aligned(rows)


def _interactions(found: Sequence[Interaction]) -> str:
    shown = [item for item in found if item.outcome == "INTERACTION" and item.change is not None]
    lines = [
        f"INTERACTION {' + '.join(item.knobs)}: {item.change.value:+.3g} nats^2 beyond their sum "
        f"({item.change.low:.2g} to {item.change.high:.2g}), corrected p {number(item.p_adjusted)}"
        for item in shown
        if item.change is not None
    ]
    return "\n".join(lines)


def _floors(floors: Sequence[Floor]) -> str:
    if not floors:
        return ""
    rows = [("control", "status", "largest movement", *(NAMES[name] for name in NAMES), "")]
    for item in floors:
        moved = max(item.movement, key=lambda one: one.max_abs, default=None)
        rows.append(
            (
                item.kind,
                item.status,
                "-" if moved is None else f"{number(moved.max_abs)} nats, {moved.arm}",
                *(number(item.gap.get(name)) for name in NAMES),
                item.reason,
            )
        )
    return "what repeating the baseline gives\n" + aligned(rows)


def _end(found: Analysis) -> str:
    lines: list[str] = []
    if found.next_command:
        lines += wrapped("next", found.next_command, indent=0)
    return "\n".join(lines)

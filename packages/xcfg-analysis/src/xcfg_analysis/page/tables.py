"""The tables under a page: every case, interactions, operator swaps, controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xcfg.schema.analysis import Cause, Effect, Floor, Interaction, Movement
from xcfg.schema.gradient import GradientSummary
from xcfg.schema.result import Interval

from xcfg_analysis.cube.table import aligned
from xcfg_analysis.page.causes import NAMES
from xcfg_analysis.show import number, wrapped

NOT_PLANNED = "not_planned"


def case_table(effects: Sequence[Effect], ground: str) -> str:
    """Return one line per case; ground: what they are held against, in words."""
    if not effects:
        return ""
    split = any(one.of_logits is not None for item in effects for one in item.movement)
    parts = ("by the logits", "by the sum") if split else ()
    rows = [("case", "outcome", "moved", "rms moved", *parts, "change of mean d^2", "p, corrected", "over")]
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
                *(_parts(moved) if split else ()),
                "-" if change is None else f"{change.value:+.3g} ({change.low:.2g} to {change.high:.2g})",
                "-" if gap is None else number(gap.p_adjusted),
                "-" if item.over is None else f"{item.over} of {item.tokens} > {number(item.yardstick)}",
            )
        )
    return f"each case against {ground}\n{aligned(rows)}"


def _parts(moved: Movement | None) -> tuple[str, str]:
    """Return the rms of what the logits moved, and of what the sum behind them rounded otherwise."""
    if moved is None:
        return "-", "-"
    return number(moved.of_logits), number(moved.of_sum)


def interaction_lines(found: Sequence[Interaction]) -> str:
    """Return what is said of every interaction that stands, with the pairs that its case cannot tell apart."""
    lines: list[str] = []
    for item in found:
        if item.outcome == "INTERACTION" and item.change is not None:
            lines += wrapped("", _interaction(item, item.change), indent=0)
    return "\n".join(lines)


def _interaction(item: Interaction, change: Interval) -> str:
    pairs = "; ".join(" + ".join(pair) for pair in item.among)
    blind = f". One case cannot tell which of these pairs does it, or whether all do: {pairs}" if pairs else ""
    return (
        f"INTERACTION {' + '.join(item.knobs)}: {change.value:+.3g} nats^2 beyond their sum "
        f"({change.low:.2g} to {change.high:.2g}), corrected p {number(item.p_adjusted)}{blind}"
    )


def swap_lines(swaps: Sequence[Cause]) -> str:
    """Return what each one-sided operator swap says."""
    lines: list[str] = []
    for item in swaps:
        change = "" if item.effect is None else f"; mean d^2 changes by {number(item.effect)} nats^2"
        lines += wrapped("", f"SWAP {item.knob} to {item.value}: {item.diagnosis}: {item.says}{change}", indent=0)
    return "\n".join(lines)


def gradient_table(found: Mapping[str, Mapping[str, GradientSummary]]) -> str:
    """Return a line per gradient that a case's score looked at: label -> arm -> figures."""
    rows = [("case", "arm", "largest", "rel. L2", "rows", "not finite", "what ran")]
    for label, arms in found.items():
        for arm, item in sorted(arms.items()):
            figures = number(item.max_abs), number(item.rel_l2), str(item.rows), str(item.broken_rows)
            rows.append((label, arm, *figures, item.options()))
    head = "how far the gradient of the log probability lies from float64's; no value of the gap depends on it"
    return f"{head}\n{aligned(rows)}" if len(rows) > 1 else ""


def floor_table(floors: Sequence[Floor]) -> str:
    """Return a line per control that was planned, and the names of the others in one."""
    planned = [item for item in floors if item.status != NOT_PLANNED]
    others = ", ".join(item.kind for item in floors if item.status == NOT_PLANNED)
    if not planned:
        return f"no control was planned ({others}): nobody knows what repeating the baseline gives" if others else ""
    rows = [("control", "status", "largest movement", *(NAMES[name] for name in NAMES), "")]
    for item in planned:
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
    tail = f"\nnot planned: {others}" if others else ""
    return f"what repeating the baseline gives\n{aligned(rows)}{tail}"

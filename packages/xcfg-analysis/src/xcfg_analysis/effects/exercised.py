"""Whether a case could have shown an effect: what the ranks of case and baseline reported of its knobs."""

from __future__ import annotations

from xcfg_analysis.cube.rows import AxisCell, Row

STRENGTH = ("no", "unknown", "yes")


def exercised_of(row: Row, baseline: Row) -> tuple[str, str]:
    """Return yes, no or unknown for all that a case changes, and in words why it is not yes.

    One of the two values must have been at work: a cache that is switched off shows in the case that it had nothing to
    do, and in the baseline that it had. Each side on which a knob acts counts, and the weakest decides.
    """
    said: list[tuple[str, str]] = []
    for key in row.delta:
        mine, its = _by_side(row, key), _by_side(baseline, key)
        for side in sorted({*mine, *its}):
            best = max(mine.get(side, "unknown"), its.get(side, "unknown"), key=STRENGTH.index)
            said.append((best, f"{key} on {side}" if side else key))
        if not mine and not its:
            said.append(("unknown", key))
    if not said:
        return "unknown", "the case changes no axis"
    weakest = min((word for word, _ in said), key=STRENGTH.index)
    names = ", ".join(name for word, name in said if word == weakest)
    told = {"no": f"{names}: the run gave it nothing to do", "unknown": f"{names}: no rank says whether it was at work"}
    return weakest, told.get(weakest, "")


def _by_side(row: Row, key: str) -> dict[str, str]:
    """Return side -> exercised of an axis; a one-sided axis that a row does not have is part of the plain knob."""
    path, _, only = key.partition("@")
    cell = row.axes.get(key) or row.axes.get(path)
    if cell is None:
        return {}
    sides = cell.sides or _unsided(cell)
    return {side: word for side, word in sides.items() if not only or side == only}


def _unsided(cell: AxisCell) -> dict[str, str]:
    return {"": cell.exercised} if cell.status else {}

"""The floors of a run: how far its baseline lies from itself, each kind of repetition apart.

A floor is measured, never assumed: a control that did not run has none. Each control is scored under a key of its own,
so that the store cannot serve it the baseline's values; fresh ones must come from other processes, and the ids that
every rank reported say whether they did.
"""

from __future__ import annotations

from collections.abc import Sequence

from xcfg.binding import CLAIMS
from xcfg.schema.analysis import Floor, Movement

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import ArmCell, Row
from xcfg_analysis.effects.effect import verdict_sums
from xcfg_analysis.effects.movement import movements
from xcfg_analysis.effects.per_sequence import QUANTITIES, is_same_tokens, means

KINDS = {
    "repeat": "repeats",
    "fresh": "fresh_processes",
    "shuffled": "shuffled",
    "cold": "cold",
    "warm": "warm",
    "at_end": "at_end",
}
"""Role of a control -> its field in `controls` of an experiment."""
CLAIMED = {
    "repeat": CLAIMS,
    "fresh": CLAIMS,
    "at_end": CLAIMS,
    "shuffled": ("batch_invariant",),
}
"""Under which claims of a runtime a control has to give equal bits."""
MEASURED, NOT_PLANNED, NOT_RUN, INVALID = "measured", "not_planned", "not_run", "invalid"


def floors(evidence: Evidence, baseline: Row, rows: Sequence[Row]) -> tuple[Floor, ...]:
    """Return one floor per kind; rows: those of the cube, of which the controls are taken."""
    controls = evidence.run.experiment.get("controls") or {}
    return tuple(
        _floor(
            evidence,
            kind,
            int(controls.get(name, 0)),
            baseline,
            [row for row in rows if row.role == kind and not row.delta],
        )
        for kind, name in KINDS.items()
    )


def resolution(found: Sequence[Floor]) -> dict[str, float]:
    """Return quantity -> the largest floor of all that were measured; empty where none was."""
    measured = [item for item in found if item.status == MEASURED]
    return {name: max(item.gap[name] for item in measured) for name in QUANTITIES} if measured else {}


def _floor(evidence: Evidence, kind: str, planned: int, baseline: Row, rows: Sequence[Row]) -> Floor:
    if not planned:
        return Floor(kind=kind, status=NOT_PLANNED)
    ground = verdict_sums(evidence, baseline)
    used, lost = [], []
    for row in rows:
        sums = verdict_sums(evidence, row)
        if sums is None or ground is None or not is_same_tokens(sums, ground):
            lost.append(f"{row.label}: {row.status} {row.reason}".strip())
        elif row.outside:
            lost.append(f"{row.label}: it ran in other surroundings ({', '.join(row.outside)})")
        else:
            used.append((row, means(sums)))
    lost += [f"{planned - len(rows)} of {planned} never ended"] if len(rows) < planned else []
    if not used or ground is None:
        return Floor(kind=kind, status=NOT_RUN, reason="; ".join(lost))
    own, doubt = processes_of(kind, baseline, [row for row, _ in used])
    cached, said = caches_of(kind, [row for row, _ in used])
    told = [item for item in (doubt, said, _not_last(evidence, kind, [row for row, _ in used])) if item]
    every = [means(ground), *(values for _, values in used)]
    moved = _largest(evidence, baseline, [row for row, _ in used])
    return Floor(
        kind=kind,
        status=INVALID if (own is False and kind == "fresh") or cached is False else MEASURED,
        cases=tuple(row.case_id for row, _ in used),
        movement=moved,
        gap={name: max(item[name] for item in every) - min(item[name] for item in every) for name in QUANTITIES},
        own_process=own,
        reason="; ".join([*lost, *told]),
        finding=_finding(kind, baseline, moved),
    )


def processes_of(kind: str, baseline: Row, rows: Sequence[Row]) -> tuple[bool | None, str]:
    """Return whether controls ran where their kind asks them to, and what is to be said about it.

    fresh: no process of the baseline and none of another control; repeat: the baseline's own; any process for others.
    None where a rank did not report its process.
    """
    arms = ("training", baseline.verdict_arm)
    sets = [[_lives(row.arms[arm]) for arm in arms if arm in row.arms] for row in (baseline, *rows)]
    if kind not in ("fresh", "repeat"):
        return None, ""
    if any(not lives for row in sets for lives in row):
        return None, "a rank did not report its process, so nothing shows that it was the right one"
    mine, *others = [set().union(*row) for row in sets]
    if kind == "repeat":
        same = all(lives == mine for lives in others)
        return same, "" if same else "the repeat was scored by another process than the baseline"
    seen = set(mine)
    for row, lives in zip(rows, others, strict=True):
        if seen & lives:
            ids = ", ".join(str(pid) for pid, _ in sorted(seen & lives))
            return False, f"{row.label} was scored by process {ids}, which had scored before"
        seen |= lives
    return True, ""


def caches_of(kind: str, rows: Sequence[Row]) -> tuple[bool | None, str]:
    """Return whether controls of a cache found it as their kind asks, by the engine's own word, and what is to be said.

    None for other kinds. A warm cache that brought no token is warm, and has shown nothing.
    """
    if kind not in ("cold", "warm"):
        return None, ""
    said = [[cell.mechanism["cache"] for cell in row.arms.values() if "cache" in cell.mechanism] for row in rows]
    if any(not any(item.get("control") == kind for item in items) for items in said):
        return False, f"no engine says that it scored with a {kind} cache"
    brought = sum(int(item.get("brought_tokens", 0)) for items in said for item in items)
    if kind == "warm" and not brought:
        return True, "the cache brought no token (no prompt fills a block of it), so warming it showed nothing"
    return True, f"{brought} tokens came from the cache"


def _not_last(evidence: Evidence, kind: str, rows: Sequence[Row]) -> str:
    """Return what was scored after the last control at the end: a run that grew has another end."""
    if kind != "at_end":
        return ""
    ended = max(evidence.scored_at(row) for row in rows)
    later = [row.label for row in evidence.cube.rows if row.delta and evidence.scored_at(row) > ended]
    more = f"{len(later)} more cases were scored after it, {later[0]!r} among them" if later else ""
    return f"{more}: raise controls.at_end for one at the new end" if more else ""


def _lives(cell: ArmCell) -> set[tuple[int, str]]:
    if not cell.started:
        return {(pid, "") for pid in cell.processes}
    return set(zip(cell.processes, cell.started, strict=True))


def _largest(evidence: Evidence, baseline: Row, rows: Sequence[Row]) -> tuple[Movement, ...]:
    """Return per arm the movement of the control that moved furthest."""
    found: dict[str, Movement] = {}
    for row in rows:
        for item in movements(evidence, row, baseline):
            if item.arm not in found or item.rms > found[item.arm].rms:
                found[item.arm] = item
    return tuple(found.values())


def _finding(kind: str, baseline: Row, moved: Sequence[Movement]) -> str:
    told = []
    for item in moved:
        claims = [name for name in CLAIMED.get(kind, ()) if baseline.arms[item.arm].claims.get(name)]
        if claims and item.differing:
            told.append(
                f"{item.arm} claims {', '.join(claims)}, and {item.differing} of {item.tokens} tokens of its {kind} "
                f"control differ, by up to {item.max_abs:.3g} nats"
            )
    return "; ".join(told)

"""The alignment ladder: the first level that satisfies the contract is where to stop.

By thresholds alone, for that is the contract: a case may pass by the luck of one token. Whether its gap differs from
production's is a question for the effects; where they are given the text answers it, and the level stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xcfg.schema.codec import evolve
from xcfg.schema.names import Status
from xcfg.schema.rules import Level

from xcfg_analysis.cube.rows import Row
from xcfg_analysis.minimize import objective
from xcfg_analysis.minimize.level import stop_at
from xcfg_analysis.rules.points import Outcome, Points

NO_IDENTITY = (Status.INVALID_IDENTITY.value, Status.ZERO_ACTIVE_TOKENS.value, Status.EMPTY_JOIN.value)
OF_THRESHOLD = {
    Outcome.PASSES: objective.Outcome.MEETS,
    Outcome.FAILS: objective.Outcome.FAILS,
    Outcome.UNMEASURED: objective.Outcome.UNRESOLVED,
}
TESTED = "Whether its gap differs from production's, beyond one token at the threshold, was not tested here."
SHOWN = "The change of its gap is shown as well."
NOT_SHOWN = "No change of its gap is shown, so it may pass by the luck of one token at the threshold."
ACTIONS = {
    "": "measure the production point first",
    "L0": "make the logical inputs and the model version exactly comparable",
    "L1": "keep both production paths unchanged",
    "L2": "change one declared setting at a time until the smallest sufficient source is found (xcfg minimize)",
    "L3": "align or fix that one operator, collective, field or representation, and leave the rest",
    "L4": "align the smallest interacting set, and leave the rest",
    "L5": "use the broad alignment for diagnosis only, and go on looking for a smaller one",
}


def ladder(points: Points, narrowed: Mapping[str, bool] | None = None) -> Level:
    """Return the level at which to stop, by the cases that were run and no others.

    narrowed: case id -> whether its gap is shown to differ from production's; None where nobody tested it. It changes
    the text alone.
    """
    production = points.production
    outcome = points.outcome(production)
    if production is not None and production.status in NO_IDENTITY:
        reason = production.reason or production.status
        return _level("L0", f"The sides did not score the same logical problem: {reason}.", production)
    if production is None or outcome is Outcome.UNMEASURED:
        return _level(
            _stop(points), f"The production point {Outcome.UNMEASURED.value}, so no level can be named.", production
        )
    if outcome is Outcome.PASSES:
        return _level(_stop(points), "Production satisfies the contract; no alignment is needed.", production)
    tried = [row for row in points.cases if points.changed(row) and points.outcome(row) is not Outcome.UNMEASURED]
    passing = [row for row in tried if points.outcome(row) is Outcome.PASSES and not _unclear(row)]
    if not passing:
        return _nothing_passes(points, production, tried)
    size = min(len(points.changed(row)) for row in passing)
    smallest = sorted((row for row in passing if len(points.changed(row)) == size), key=_doubt(narrowed))
    named = "; or ".join(_named(points, row) for row in smallest)
    left = tuple(sorted(points.settings - points.changed(smallest[0])))
    sets = tuple(dict.fromkeys(tuple(sorted(points.changed(row))) for row in smallest))
    rest = f" What may stay different: {', '.join(left)}." if left else ""
    tested = TESTED if narrowed is None else SHOWN if narrowed.get(smallest[0].case_id) else NOT_SHOWN
    untried = _untried(points, tried)
    level = _stop(points, size, untried=bool(untried), only_whole=all(row is points.whole for row in smallest))
    word, rows = "aligned" if points.profiles else "changed", tuple(smallest)
    text = {
        "L2": f"The smallest set that was run and passes is {named}, but these were not {word} alone: {untried}.",
        "L3": f"One local change is enough by the threshold: {named}.{rest} {tested}",
        "L4": f"No single change is enough, and together these are: {named}.{rest} {tested}",
        "L5": f"Of the cases that were run only the one with everything aligned passes: {named}.",
    }[level]
    return evolve(_level(level, text, *((production,) if level == "L2" else ()), *rows), sets=sets, left=left)


def _stop(points: Points, size: int | None = None, *, untried: bool = False, only_whole: bool = False) -> str:
    whole_fails = points.outcome(points.whole) is Outcome.FAILS
    production = OF_THRESHOLD[points.outcome(points.production)]
    return stop_at(production, size, untried=untried, only_whole=only_whole, whole_fails=whole_fails)


def _doubt(narrowed: Mapping[str, bool] | None) -> Callable[[Row], bool]:
    """Return the order of equally small sets: those whose gap is shown to change first."""
    return lambda row: not (narrowed or {}).get(row.case_id, False)


def _untried(points: Points, tried: list[Row]) -> str:
    """Return which settings no measured case changes alone; empty where every one was tried."""
    alone = {next(iter(changed)) for row in tried if len(changed := points.changed(row)) == 1}
    return ", ".join(sorted(points.settings - alone))


def _nothing_passes(points: Points, production: Row, tried: list[Row]) -> Level:
    level = _stop(points)
    if level == "L5" and points.profiles:
        text = (
            "Even the fully aligned reference fails: this is no mismatch of configurations yet. Debug the scoring path."
        )
        return _level(level, text, points.whole)
    if level == "L5":
        text = "Production fails with all declared alignments together too: what matters lies outside them."
        return _level(level, text, points.whole)
    unclear = [row for row in tried if points.outcome(row) is Outcome.PASSES]
    if unclear:
        text = (
            f"Production fails, and of the {len(tried)} measured changes only such pass as something undeclared "
            f"changed with: {'; '.join(_named(points, row) for row in unclear)}. They support no claim."
        )
    elif tried:
        text = (
            f"Production fails, and none of the {len(tried)} measured changes passes; other settings are left to try."
        )
    else:
        text = "Production fails, and no change of it was measured."
    return _level(level, text, production)


def _unclear(row: Row) -> bool:
    """Whether something beside the declared change differs, so that the case supports no claim about it."""
    return bool(row.coupled or row.undeclared or row.outside)


def _named(points: Points, row: Row) -> str:
    return " + ".join(sorted(points.changed(row)))


def _level(level: str, text: str, *rows: Row | None) -> Level:
    ids = tuple(row.case_id for row in rows if row is not None)
    return Level(level=level, text=text, action=ACTIONS[level], evidence=ids)

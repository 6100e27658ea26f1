"""The alignment ladder: the first level that satisfies the contract is where to stop.

By thresholds alone: a case may pass by the luck of one token. Whether its gap differs from production's is a question
for the effects of `xcfg analyze`, and the text says so.
"""

from __future__ import annotations

from xcfg.schema.names import Status

from xcfg_analysis.cube.rows import Row
from xcfg_analysis.rules.conclusion import Level
from xcfg_analysis.rules.points import Outcome, Points

NO_IDENTITY = (Status.INVALID_IDENTITY.value, Status.ZERO_ACTIVE_TOKENS.value, Status.EMPTY_JOIN.value)
TESTED = "Whether the gap changed, beyond one token at the threshold, is tested by `xcfg analyze` and `xcfg minimize`."
ACTIONS = {
    "": "measure the production point first",
    "L0": "make the logical inputs and the model version exactly comparable",
    "L1": "keep both production paths unchanged",
    "L2": "change one declared setting at a time until the smallest sufficient source is found (xcfg minimize)",
    "L3": "align or fix that one operator, collective, field or representation, and leave the rest",
    "L4": "align the smallest interacting set, and leave the rest",
    "L5": "use the broad alignment for diagnosis only, and go on looking for a smaller one",
}


def ladder(points: Points) -> Level:
    """Return the level at which to stop, by the cases that were run and no others."""
    production = points.production
    outcome = points.outcome(production)
    if production is not None and production.status in NO_IDENTITY:
        reason = production.reason or production.status
        return _level("L0", f"The sides did not score the same logical problem: {reason}.", production)
    if production is None or outcome is Outcome.UNMEASURED:
        return _level("", f"The production point {Outcome.UNMEASURED.value}, so no level can be named.", production)
    if outcome is Outcome.PASSES:
        return _level("L1", "Production satisfies the contract; no alignment is needed.", production)
    tried = [row for row in points.cases if points.changed(row) and points.outcome(row) is not Outcome.UNMEASURED]
    passing = [row for row in tried if points.outcome(row) is Outcome.PASSES and not _unclear(row)]
    if not passing:
        return _nothing_passes(points, production, tried)
    size = min(len(points.changed(row)) for row in passing)
    smallest = [row for row in passing if len(points.changed(row)) == size]
    named = "; or ".join(_named(points, row) for row in smallest)
    left = sorted(points.keys - points.changed(smallest[0]))
    rest = f" What may stay different: {', '.join(left)}." if left else ""
    if size == 1:
        return _level("L3", f"One local change is enough by the threshold: {named}.{rest} {TESTED}", *smallest)
    untried = _untried(points, tried)
    if untried:
        text = f"The smallest set that was run and passes is {named}, but these were not aligned alone: {untried}."
        return _level("L2", text, production, *smallest)
    if points.aligned is not None and all(row is points.aligned for row in smallest):
        return _level("L5", f"Of the cases that were run only the fully aligned one passes: {named}.", *smallest)
    return _level("L4", f"No single change is enough, and together these are: {named}.{rest} {TESTED}", *smallest)


def _untried(points: Points, tried: list[Row]) -> str:
    """Return which settings of a run of profiles no case aligns alone; empty where every one was tried."""
    alone = {next(iter(changed)) for row in tried if len(changed := points.changed(row)) == 1}
    return ", ".join(sorted(points.keys - alone))


def _nothing_passes(points: Points, production: Row, tried: list[Row]) -> Level:
    aligned = points.outcome(points.aligned)
    if aligned is Outcome.FAILS and points.aligned is not None:
        text = (
            "Even the fully aligned reference fails: this is no mismatch of configurations yet. Debug the scoring path."
        )
        return _level("L5", text, points.aligned)
    if tried:
        text = (
            f"Production fails, and none of the {len(tried)} measured changes passes; other settings are left to try."
        )
    else:
        text = "Production fails, and no change of it was measured."
    return _level("L2", text, production)


def _unclear(row: Row) -> bool:
    """Whether something beside the declared change differs, so that the case supports no claim about it."""
    return bool(row.coupled or row.undeclared or row.outside)


def _named(points: Points, row: Row) -> str:
    return " + ".join(sorted(points.changed(row)))


def _level(level: str, text: str, *rows: Row | None) -> Level:
    ids = tuple(row.case_id for row in rows if row is not None)
    return Level(level=level, text=text, action=ACTIONS[level], evidence=ids)

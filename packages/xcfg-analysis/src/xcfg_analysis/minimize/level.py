"""The level of the alignment ladder at which to stop, from facts that every objective has. The one definition of it."""

from __future__ import annotations

from xcfg_analysis.minimize.objective import Outcome


def stop_at(production: Outcome, size: int | None, *, untried: bool, only_whole: bool, whole_fails: bool) -> str:
    """Return `L1` to `L5`, or empty where production is not decided. L0 is a matter of identity, not of sets.

    size: of the smallest set that is enough; None where none is. untried: some change was not measured alone, so that
    it might be enough by itself. only_whole: of the smallest sets there is one, and it aligns everything that can be.
    whole_fails: that one was measured, and is not enough.
    """
    if production is Outcome.UNRESOLVED:
        return ""
    if production is Outcome.MEETS:
        return "L1"
    if size is None:
        return "L5" if whole_fails else "L2"
    if size == 1:
        return "L3"
    if untried:
        return "L2"
    return "L5" if only_whole else "L4"

"""What `xcfg minimize` found: every set of alignments that was tried, and those that are enough and minimal."""

from __future__ import annotations

from xcfg.schema._base import Record
from xcfg.schema.result import Interval


class AlignmentTrial(Record):
    """One set of align entries, and what scoring it said of the objective.

    outcome: meets | fails | UNRESOLVED; never a status. value, interval: of the objective's figure. repeats: scorings
    beside the first. first: the outcome by the first scoring alone, where there were repeats. seconds: of scoring,
    shared scores included. case_id: empty where it is no case.
    """

    align: tuple[str, ...]
    outcome: str
    case_id: str = ""
    value: float | None = None
    interval: Interval | None = None
    reason: str = ""
    repeats: int = 0
    seconds: float = 0.0
    knobs: tuple[str, ...] = ()
    coupled: tuple[str, ...] = ()
    first: str = ""


class AlignmentSet(Record):
    """A set that is enough, in the order of preference. The five keys: scope, count, time, intrusion, maintenance.

    minimal: no proper subset is enough; one_minimal: none that lacks one entry; None where that is not settled, because
    the sets in `open` are unresolved or were not tried. time: scoring seconds over the production point's.
    left_enabled: align entries that stay apart under it.
    """

    align: tuple[str, ...]
    knobs: tuple[str, ...]
    minimal: bool | None
    one_minimal: bool | None
    scope: int
    count: int
    time: float | None
    intrusion: int
    maintenance: int
    left_enabled: tuple[str, ...] = ()
    open: tuple[tuple[str, ...], ...] = ()


class Minimization(Record):
    """The search behind `Analysis.minimal_sets`.

    strategy: exhaustive | ddmin | grid. budget: different sets that could be tried. complete: there is no other minimal
    set. covered: ddmin found all of them if more alignment never undoes what less did. spent: the budget ended it.
    claim: what the result is evidence for, and what it is not. level: of the ladder, for this objective; empty where
    production is UNRESOLVED. says: the conclusion. left_enabled: settings that may stay different with the first set.
    """

    objective: str
    strategy: str
    production: str
    atoms: tuple[str, ...]
    sets: tuple[AlignmentSet, ...]
    trials: tuple[AlignmentTrial, ...]
    complete: bool
    covered: bool
    spent: bool
    budget: int
    repeats: int
    why_not_broader: str
    claim: str
    notes: tuple[str, ...] = ()
    level: str = ""
    says: str = ""
    left_enabled: tuple[str, ...] = ()

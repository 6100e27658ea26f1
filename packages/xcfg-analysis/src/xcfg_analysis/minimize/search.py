"""Which sets of alignments are enough, and minimal, by asking as few times as the question allows. Pure.

    exhaustive   2^k subsets fit the budget: by size, without supersets of a set that is enough. All minimal sets.
    ddmin        otherwise: every atom alone, then delta debugging (Zeller and Hildebrandt 2002, "Simplifying and
                 isolating failure-inducing input", with "enough" in the place of "fails") from all atoms; for further
                 sets again from all atoms but one of each set that is known (Reiter's hitting-set tree, 1987). Where
                 all atoms together are not enough, by size as far as the budget reaches.

An oracle may be neither monotone (more alignment can undo what less did) nor certain. So minimality is claimed from
subsets that were asked, never from monotonicity; an UNRESOLVED subset is asked again, at most `repeats` times, and what
is unresolved after that makes every claim that rests on it unresolved too.

Written here, since the libraries of delta debugging that are kept know two outcomes and no repeats: they would take a
set that could not be judged for one that is not enough.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xcfg_analysis.minimize.objective import Outcome

Subset = frozenset[int]
NONE: Subset = frozenset()
MAX_LISTED = 64
"""Open subsets that are listed of one set; there may be more than anybody reads."""


@dataclass(frozen=True)
class Question:
    """A set of atoms, and how many scorings of it there have to be beside the first."""

    subset: Subset
    repeats: int = 0


@dataclass(frozen=True)
class Answer:
    """What the oracle says. final: asking again would say the same."""

    outcome: Outcome
    final: bool = False


Oracle = Callable[[Sequence[Question]], Sequence[Answer]]


@dataclass(frozen=True)
class Trial:
    """A set that was asked: its outcome after so many repeats. first: by its first scoring alone; None if unknown."""

    subset: Subset
    outcome: Outcome
    repeats: int
    first: Outcome | None = None


@dataclass(frozen=True)
class MinimalSet:
    """A set that is enough. minimal: no proper subset of it is; None where that is not settled.

    one_minimal: no single atom can be left out; None likewise. open: proper subsets that are unresolved or were not
    asked, smallest first.
    """

    subset: Subset
    minimal: bool | None
    one_minimal: bool | None
    open: tuple[Subset, ...] = ()


@dataclass(frozen=True)
class Found:
    """What a search found. strategy: exhaustive, ddmin or grid.

    complete: `sets` are all minimal sets, and there is no other. spent: the budget ended the search.
    covered: ddmin found every set that there is if more alignment never undoes what less did.
    """

    strategy: str
    atoms: int
    sets: tuple[MinimalSet, ...]
    trials: tuple[Trial, ...]
    complete: bool
    spent: bool = False
    covered: bool = False
    unresolved: tuple[Subset, ...] = ()

    def outcome(self, subset: Subset) -> Outcome | None:
        """Return what is known of a set; None where it was not asked."""
        return next((trial.outcome for trial in self.trials if trial.subset == subset), None)


class _Spent(Exception):
    """The budget is used up."""


@dataclass
class _Asked:
    """The oracle with a memory, a budget of different sets, and repeats for what is unresolved."""

    oracle: Oracle
    budget: int
    repeats: int
    known: dict[Subset, Trial] = field(default_factory=dict)

    def ask(self, subsets: Iterable[Subset]) -> None:
        """Settle every set, as far as the budget and the repeats go. Raises _Spent where some were not asked."""
        wanted = [subset for subset in dict.fromkeys(subsets) if subset not in self.known]
        allowed = wanted[: max(0, self.budget - len(self.known))]
        pending = [Question(subset) for subset in allowed]
        while pending:
            again = []
            for question, answer in zip(pending, self.oracle(pending), strict=True):
                before = self.known.get(question.subset)
                first = answer.outcome if before is None else before.first
                self.known[question.subset] = Trial(question.subset, answer.outcome, question.repeats, first)
                if answer.outcome is Outcome.UNRESOLVED and not answer.final and question.repeats < self.repeats:
                    again.append(Question(question.subset, question.repeats + 1))
            pending = again
        if len(allowed) < len(wanted):
            raise _Spent

    def meets(self, subset: Subset) -> bool:
        """Whether a set is enough."""
        self.ask([subset])
        return self.known[subset].outcome is Outcome.MEETS

    def enough(self) -> list[Subset]:
        """Return the sets that are known to be enough."""
        return [trial.subset for trial in self.known.values() if trial.outcome is Outcome.MEETS]


def search(atoms: int, oracle: Oracle, *, budget: int, repeats: int = 0) -> Found:
    """Return the minimal sets among the subsets of `atoms` atoms.

    budget: different sets that may be asked, at least 1. repeats: of each unresolved set, at most.
    """
    asked = _Asked(oracle, budget, repeats)
    exhaustive = 2**atoms <= budget
    spent = covered = False
    try:
        if exhaustive:
            _by_size(asked, range(atoms), range(atoms + 1))
        else:
            covered = _narrow(asked, atoms)
    except _Spent:
        spent = True
    strategy = "exhaustive" if exhaustive else "ddmin"
    return conclude(strategy, atoms, asked.known.values(), spent=spent, covered=covered)


def conclude(
    strategy: str, atoms: int, trials: Iterable[Trial], *, spent: bool = False, covered: bool = False
) -> Found:
    """Return what follows from sets that were asked, and from nothing else."""
    known = {trial.subset: trial for trial in trials}
    enough = [subset for subset, trial in known.items() if trial.outcome is Outcome.MEETS]
    least = [subset for subset in enough if not any(other < subset for other in enough)]
    unresolved = [subset for subset, trial in known.items() if trial.outcome is Outcome.UNRESOLVED]
    found = tuple(_described(subset, known) for subset in sorted(least, key=_order))
    # A set that is enough above an unresolved one is still enough; what is open is what else could be minimal.
    undecided = any(not any(other <= subset for other in enough) for subset in unresolved)
    complete = not spent and not undecided and not _has_gap(NONE, 0, atoms, known, set(enough))
    return Found(
        strategy=strategy,
        atoms=atoms,
        sets=found,
        trials=tuple(sorted(known.values(), key=lambda trial: _order(trial.subset))),
        complete=complete,
        spent=spent,
        covered=covered,
        unresolved=tuple(sorted(unresolved, key=_order)),
    )


def _has_gap(subset: Subset, first: int, atoms: int, known: Mapping[Subset, Trial], enough: set[Subset]) -> bool:
    """Whether a set that was not asked, at or above `subset`, holds no set that is enough, and so could be minimal."""
    if any(other <= subset for other in enough):
        return False
    if subset not in known:
        return True
    return any(_has_gap(subset | {atom}, atom + 1, atoms, known, enough) for atom in range(first, atoms))


def _order(subset: Subset) -> tuple[int, list[int]]:
    return len(subset), sorted(subset)


def _described(subset: Subset, known: dict[Subset, Trial]) -> MinimalSet:
    def settled(below: Iterable[Subset]) -> tuple[bool | None, list[Subset]]:
        open_ = []
        for item in below:
            trial = known.get(item)
            if trial is None or trial.outcome is Outcome.UNRESOLVED:
                open_.append(item)
                if len(open_) >= MAX_LISTED:
                    break
        return (None if open_ else True), open_

    proper = (frozenset(item) for size in range(len(subset)) for item in itertools.combinations(sorted(subset), size))
    minimal, open_ = settled(proper)
    one, _ = settled(subset - {atom} for atom in subset)
    return MinimalSet(subset, minimal, one, tuple(open_))


def _by_size(asked: _Asked, atoms: Iterable[int], sizes: Iterable[int]) -> None:
    """Ask all sets of each size that hold no set known to be enough."""
    members = sorted(atoms)
    for size in sizes:
        enough = asked.enough()
        subsets = (frozenset(item) for item in itertools.combinations(members, size))
        wanted = (subset for subset in subsets if not any(other <= subset for other in enough))
        # One more than can be asked says that the budget ended the search.
        asked.ask(itertools.islice(wanted, asked.budget + 1))


def _narrow(asked: _Asked, atoms: int) -> bool:
    """Search by delta debugging; return whether the hitting-set tree was gone through."""
    if asked.meets(NONE):
        return True
    everyone = frozenset(range(atoms))
    asked.ask(frozenset([atom]) for atom in range(atoms))
    complete = True
    seen = {NONE}
    waiting = deque([NONE])
    while waiting:
        without = waiting.popleft()
        inside = everyone - without
        known = [subset for subset in asked.enough() if subset <= inside]
        if known:
            found = _one_minimal(asked, min(known, key=_order))
        elif inside and asked.meets(inside):
            found = _one_minimal(asked, inside)
        else:
            complete = complete and (not inside or asked.known[inside].outcome is Outcome.FAILS)
            continue
        for atom in sorted(found):
            less = without | {atom}
            if less not in seen:
                seen.add(less)
                waiting.append(less)
    if not asked.enough():
        _by_size(asked, everyone, range(2, atoms))
    return complete


def _one_minimal(asked: _Asked, start: Subset) -> Subset:
    """Return a subset of `start`, which is enough, from which no single atom can be taken. ddmin, then the re-check."""
    items = _ddmin(asked, sorted(start))
    while True:
        singles = [items - {atom} for atom in sorted(items)]
        asked.ask(singles)
        smaller = [subset for subset in singles if asked.meets(subset)]
        if not smaller:
            return items
        items = _ddmin(asked, sorted(smaller[0]))


def _ddmin(asked: _Asked, items: list[int]) -> Subset:
    parts = 2
    while len(items) >= 2:
        split = _split(items, parts)
        part = next((part for part in split if asked.meets(frozenset(part))), None)
        if part is not None:
            items, parts = part, 2
            continue
        rests = [[item for item in items if item not in part] for part in split] if parts > 2 else []
        rest = next((rest for rest in rests if asked.meets(frozenset(rest))), None)
        if rest is not None:
            items, parts = rest, max(parts - 1, 2)
        elif parts >= len(items):
            break
        else:
            parts = min(len(items), 2 * parts)
    return frozenset(items)


def _split(items: list[int], parts: int) -> list[list[int]]:
    """Return `items` in `parts` runs whose sizes differ by one at most."""
    size, more = divmod(len(items), parts)
    ends = list(itertools.accumulate([size + (index < more) for index in range(parts)], initial=0))
    return [items[low:high] for low, high in itertools.pairwise(ends)]

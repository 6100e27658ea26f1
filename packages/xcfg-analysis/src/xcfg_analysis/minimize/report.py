"""From a search to its document: the sets in order, what may stay different, and what the result does not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xcfg.schema.analysis import ANALYSIS, Analysis
from xcfg.schema.minimization import AlignmentSet, AlignmentTrial, Minimization

from xcfg_analysis.cube.rows import Row
from xcfg_analysis.minimize.atoms import Atom
from xcfg_analysis.minimize.level import stop_at
from xcfg_analysis.minimize.objective import Judged, Objective, Outcome
from xcfg_analysis.minimize.rank import Ranked, rank
from xcfg_analysis.minimize.search import MAX_LISTED, NONE, Found, Subset, Trial

CLAIM = (
    "This is evidence for the smallest effective intervention among the declared ones, on these tokens, model and "
    "runtimes. It is no proof of a root cause: a fix still needs its own reproducer and regression."
)
FAILED, OPEN = 1, 3


@dataclass(frozen=True)
class Searched:
    """A search that has ended. rows: of each set that is a case. place: the run's folder, for the next command.

    whole: the set that aligns everything that the experiment lets be aligned; None where it lists no such thing.
    """

    objective: Objective
    atoms: Sequence[Atom]
    found: Found
    judged: Mapping[Subset, Judged]
    rows: Mapping[Subset, Row]
    fixed: Mapping[str, str]
    budget: int
    repeats: int
    source: str
    place: Path | None = None
    notes: tuple[str, ...] = ()
    whole: Subset | None = None

    def labels(self, subset: Subset) -> tuple[str, ...]:
        """Return the labels of a set's atoms."""
        return tuple(self.atoms[index].label for index in sorted(subset))

    def knobs(self, subset: Subset) -> tuple[str, ...]:
        """Return the axis keys that a set changes; those of its row where it is a case."""
        if subset in self.rows:
            return tuple(sorted(self.rows[subset].delta))
        return tuple(sorted({knob for index in subset for knob in self.atoms[index].knobs}))

    def seconds(self, subset: Subset) -> float:
        """Return the seconds of scoring a set once."""
        return self.rows[subset].seconds.get("score", 0.0) if subset in self.rows else 0.0


def document(searched: Searched) -> Analysis:
    """Return the analysis that `xcfg minimize` prints."""
    ran = minimization(searched)
    row = searched.rows.get(NONE)
    edge = row.edges.get(row.verdict_edge) if row is not None else None
    return Analysis(
        schema_version=ANALYSIS,
        conclusion=ran.says,
        ladder_level=ran.level,
        assessment=row.assessment.assessment if row is not None and row.assessment is not None else "",
        minimal_sets=tuple(item.align for item in ran.sets),
        left_enabled=ran.left_enabled,
        not_alignable=tuple(f"{path}: {why}" for path, why in sorted(searched.fixed.items())),
        next_command=f"xcfg cube {searched.place}" if searched.place is not None else "",
        exit_code=_exit_code(searched),
        status=row.status if row is not None else "",
        reason=row.reason if row is not None else "",
        source=(searched.source,),
        tokens=0 if edge is None else edge.active_tokens,
        sequences=0 if edge is None else len(edge.by_sequence),
        threshold=None if row is None else row.threshold,
        mismatches=0 if edge is None else edge.mismatches,
        minimization=ran,
    )


def minimization(searched: Searched) -> Minimization:
    """Return what a search found: the part of the document that an analysis of a run holds as well."""
    found = searched.found
    seconds = {trial.subset: searched.seconds(trial.subset) for trial in found.trials}
    ranked = rank(found.sets, searched.atoms, seconds, searched.seconds(NONE))
    sets = tuple(_set(item, searched) for item in ranked)
    left = sorted({*_paths(searched, sets[0].left_enabled), *searched.fixed}) if sets else []
    level = _level(searched)
    return Minimization(
        objective=searched.objective.name,
        strategy=found.strategy,
        production=searched.judged[NONE].outcome.value,
        atoms=tuple(atom.label for atom in searched.atoms),
        sets=sets,
        trials=tuple(_trial(trial, searched) for trial in found.trials),
        complete=found.complete,
        covered=found.covered,
        spent=found.spent,
        budget=searched.budget,
        repeats=searched.repeats,
        why_not_broader=_why_not_broader(ranked, level, complete=found.complete),
        claim=CLAIM,
        notes=searched.notes,
        level=level,
        says=_conclusion(searched, ranked),
        left_enabled=tuple(left),
    )


def _set(item: Ranked, searched: Searched) -> AlignmentSet:
    subset = item.found.subset
    chosen = {knob for index in subset for knob in searched.atoms[index].knobs}
    left = [
        atom.label
        for index, atom in enumerate(searched.atoms)
        if index not in subset and not set(atom.knobs) <= chosen  # another way to align the same knob is no difference
    ]
    return AlignmentSet(
        align=searched.labels(subset),
        knobs=searched.knobs(subset),
        minimal=item.found.minimal,
        one_minimal=item.found.one_minimal,
        scope=item.scope,
        count=item.knobs,
        time=item.time,
        intrusion=item.intrusion,
        maintenance=item.maintenance,
        left_enabled=tuple(left),
        open=tuple(searched.labels(other) for other in item.found.open),
    )


def _paths(searched: Searched, labels: Sequence[str]) -> set[str]:
    return {knob.partition("@")[0] for atom in searched.atoms if atom.label in labels for knob in atom.knobs}


def _trial(trial: Trial, searched: Searched) -> AlignmentTrial:
    subset = trial.subset
    judged, row = searched.judged[subset], searched.rows.get(subset)
    coupled = () if row is None else tuple(str(change.get("path", "")) for change in (*row.coupled, *row.undeclared))
    return AlignmentTrial(
        align=searched.labels(subset),
        outcome=judged.outcome.value,
        case_id="" if row is None else row.case_id,
        value=judged.value,
        interval=judged.interval,
        reason=_reason(judged, trial.repeats, searched.repeats),
        repeats=trial.repeats,
        seconds=searched.seconds(subset),
        knobs=searched.knobs(subset),
        coupled=tuple(dict.fromkeys((*coupled, *(() if row is None else row.outside)))),
        first=trial.first.value if trial.repeats and trial.first is not None else "",
    )


def _reason(judged: Judged, repeats: int, allowed: int) -> str:
    """Return a trial's reason; of what is open, also whether more repeats than were allowed could decide it."""
    if judged.outcome is not Outcome.UNRESOLVED or not judged.repeatable or repeats < allowed:
        return judged.reason
    made = f"after {repeats} repeats, all that were allowed" if repeats else "and no repeat was allowed"
    return f"{judged.reason}, {made}; more of them may decide it"


def _level(searched: Searched) -> str:
    found = searched.found
    sizes = [len(item.subset) for item in found.sets]
    least = [item.subset for item in found.sets if len(item.subset) == min(sizes)]
    settled = [trial.subset for trial in found.trials if trial.outcome is not Outcome.UNRESOLVED]
    alone = {knob for subset in settled if len(subset) == 1 for at in subset for knob in searched.atoms[at].knobs}
    return stop_at(
        searched.judged[NONE].outcome,
        min(sizes, default=None),
        untried=any(not alone.issuperset(atom.knobs) for atom in searched.atoms),
        only_whole=least == [searched.whole],
        whole_fails=searched.whole is not None and found.outcome(searched.whole) is Outcome.FAILS,
    )


def _exit_code(searched: Searched) -> int:
    if searched.judged[NONE].outcome is Outcome.MEETS:
        return 0
    if searched.judged[NONE].outcome is Outcome.FAILS and (searched.found.sets or searched.found.complete):
        return FAILED
    return OPEN


def _conclusion(searched: Searched, ranked: Sequence[Ranked]) -> str:
    name, found = searched.objective.name, searched.found
    if not ranked:
        tried = f"{len(found.trials)} sets of {len(searched.atoms)} alignments were tried"
        if found.complete:
            return f"Nothing that can be aligned here is enough for {name!r}: all {tried}, and every one fails."
        known = f"{len(found.unresolved)} of them are UNRESOLVED" if found.unresolved else "no other was"
        return f"No set is known to be enough for {name!r}: {tried}, and {known}{_unfinished(found)}."
    best = ranked[0].found
    if not best.subset:
        return f"The production point meets {name!r} as it is: nothing has to be aligned."
    named = " + ".join(searched.labels(best.subset))
    others = f"; {len(ranked) - 1} other minimal {'set' if len(ranked) == 2 else 'sets'}" if len(ranked) > 1 else ""
    how = "is enough" if best.minimal else "is enough, and whether less would be is open"
    if searched.judged[NONE].outcome is not Outcome.FAILS:
        how += ", but whether the production point needs it is UNRESOLVED"
    whole = "these are all" if found.complete and len(ranked) > 1 else "there is no other" if found.complete else ""
    tail = f" ({whole})" if whole else _unfinished(found) or " (others may exist)"
    return f"For {name!r}, {named} {how}{others}{tail}."


def _unfinished(found: Found) -> str:
    return "; the budget ended the search" if found.spent else ""


def _why_not_broader(ranked: Sequence[Ranked], level: str, *, complete: bool) -> str:
    if not ranked and not level:
        return "The production point is unresolved, so no level can be named."
    if not ranked:
        if not complete and level != "L5":
            return "Sets of the declared alignments are open, so nothing says yet that a broader one is needed."
        left = "so a broader one is what is left: a diagnostic" if level == "L5" else "and others are left to try"
        return f"No declared alignment is known to be enough, {left}."
    best = ranked[0].found
    if not best.subset:
        return "Both production paths may stay as they are, so the ladder ends at L1."
    below = 2 ** len(best.subset) - 1
    if best.minimal and below == 1:
        first = "Without it the production point fails"
    elif best.minimal:
        first = f"Each of its {below} proper subsets was tried and is not enough"
    else:
        open_ = f"{len(best.open)} or more" if len(best.open) == MAX_LISTED else str(len(best.open))
        first = f"Of its {below} smaller sets {open_} are unresolved or were not tried, the others are not enough"
    return (
        f"{first}; it is enough while everything that may differ stays different, so a broader level would change "
        "more and gain nothing for this objective."
    )

"""The printed form of a search."""

from __future__ import annotations

from collections.abc import Iterator

from xcfg.schema.analysis import Analysis
from xcfg.schema.minimization import AlignmentSet, AlignmentTrial, Minimization

from xcfg_analysis.minimize.objective import Outcome
from xcfg_analysis.show import columns, fixed_lines, number, wrapped


def text(found: Analysis) -> str:
    """Return a minimization for a terminal."""
    ran = found.minimization
    if ran is None:
        return found.conclusion
    lines = [
        f"objective {ran.objective}: production {ran.production}",
        f"{len(ran.trials)} of {2 ** len(ran.atoms)} sets tried ({ran.strategy})",
        "",
        columns([("set", "outcome", "value", "interval", "scorings", "seconds"), *map(_trial, ran.trials)]),
        "",
        *wrapped("", found.conclusion, indent=0),
        "",
        *_sets(ran),
        *wrapped("level", f"{ran.level or 'none'}. {ran.why_not_broader}"),
        *wrapped("may differ", ", ".join(found.left_enabled) or "nothing else that is declared"),
    ]
    for line in fixed_lines(found.not_alignable):
        lines += wrapped("fixed", line)
    for note in ran.notes:
        lines += wrapped("note", note)
    for trial in ran.trials:
        if trial.outcome == Outcome.UNRESOLVED.value:
            lines += wrapped("open", f"{_name(trial.align)}: {trial.reason}")
        elif trial.first == Outcome.UNRESOLVED.value:
            after = f"UNRESOLVED by its first scoring, {trial.outcome} after {_repeats(trial.repeats)}"
            lines += wrapped("settled", f"{_name(trial.align)}: {after}")
        if trial.coupled:
            lines += wrapped("note", f"{_name(trial.align)} also changed {', '.join(trial.coupled)}")
    lines += wrapped("claim", ran.claim)
    if found.next_command:
        lines += wrapped("next", found.next_command)
    return "\n".join(lines)


def _sets(ran: Minimization) -> Iterator[str]:
    if not ran.sets:
        return
    head = ("minimal sets, best first", "scope", "knobs", "time", "intrusion", "maintenance", "minimal")
    yield columns([head, *map(_set, ran.sets)])
    yield from wrapped(
        "", "time: scoring seconds over the production point's; memory is not recorded and ranks nothing"
    )
    yield ""


def _set(item: AlignmentSet) -> tuple[str, ...]:
    proved = "yes" if item.minimal else "by one" if item.one_minimal else "open"
    keys = (str(item.scope), str(item.count), number(item.time), str(item.intrusion), str(item.maintenance))
    return (_name(item.align), *keys, proved)


def _trial(trial: AlignmentTrial) -> tuple[str, ...]:
    interval = "-" if trial.interval is None else f"{number(trial.interval.low)} to {number(trial.interval.high)}"
    scorings = str(trial.repeats + 1) if trial.case_id else "-"
    return (_name(trial.align), trial.outcome, number(trial.value), interval, scorings, f"{trial.seconds:.1f}")


def _repeats(count: int) -> str:
    return "one repeat" if count == 1 else f"{count} repeats"


def _name(labels: tuple[str, ...]) -> str:
    return " + ".join(labels) or "production as it is"

"""What is known of one argument by itself: the traps it is part of, and the rows that a run left."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xcfg.arguments.settings import LONG, Setting, SideArguments, nearest, shortened, spelled
from xcfg.schema._base import Value
from xcfg.schema.arguments import ArgumentRow, Condition, Outcome, Trap
from xcfg.schema.codec import evolve
from xcfg.schema.doctor import MEASURED, ConfirmingCase, Finding, Verdict
from xcfg.schema.knobs import Choice, FloatRange, IntRange, KnobDefinition

_HAPPENS = {
    Outcome.APPLIED: "it acts, and moves log probabilities",
    Outcome.NO_EFFECT: "it acts, and moved no log probability",
    Outcome.IGNORED: "it is accepted and something else runs",
    Outcome.UNOBSERVABLE: "it is accepted, and nothing showed that it acts",
    Outcome.REFUSED: "the engine does not start with it",
    Outcome.NOT_RUN: "no case has shown what it does",
}


@dataclass(frozen=True)
class Place:
    """Where the arguments are to run. command: how an experiment is run there; knobs: what it may name."""

    platform: str
    command: str
    knobs: Mapping[str, KnobDefinition]

    def case(self, path: str, value: Value, against: Value = None) -> ConfirmingCase | None:
        """Return the intervention that shows `value` of `path`; None when no experiment may ask for it.

        It also names a value to compare with: `against`, the knob's default or its reference. The planner drops a level
        that the baseline has, so a case is left whatever the baseline is.
        """
        knob = self.knobs.get(path)
        if knob is None or value is None or not _admits(knob, value) or len(spelled(value)) > LONG:
            return None
        reference = None if knob.align is None else knob.align.reference
        others = (item for item in (against, knob.default, reference) if item is not None and _admits(knob, item))
        other = next((item for item in others if not same(value, item)), None)
        both = (value,) if other is None else (value, other)
        return ConfirmingCase(path=path, values=both, command=f"{self.command} --axis {path}")


def same(first: Value, second: Value) -> bool:
    """Whether two values are equal; a bool is no number, 1 and 1.0 are."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    return first == second


def findings_of(side: SideArguments, setting: Setting, place: Place) -> list[Finding]:
    """Return at least one finding about `setting`."""
    if setting.argument is None:
        hint = nearest(setting.flag, side.table)
        happens = f"not in the table of the runtime {side.runtime!r}" + (f". {hint}" if hint else "")
        return [_finding(side, setting, Verdict.UNKNOWN, happens)]
    held = [trap for trap in side.table.traps if _holds(trap, side, setting, place)]
    measured = _measured(side, setting, place)
    outrun = [trap for trap in held if _ran_all_the_same(trap, measured)]
    for trap in outrun:
        remark = f"; refused elsewhere: {trap.happens} ({trap.source})"
        measured = [evolve(row, happens=row.happens + remark) if row.effects else row for row in measured]
    found = [_trap_finding(side, setting, trap, place) for trap in held if trap not in outrun]
    return _joined(found, measured) if found else measured


def _ran_all_the_same(trap: Trap, measured: list[Finding]) -> bool:
    """Whether a case of ours scored with what the trap says is refused: evidence of a run wins over a sentence.

    The sentence is kept beside it, since it may hold where more than a score is computed. A trap of several arguments
    is not answered by a row, which knows one.
    """
    alone = trap.outcome is Outcome.REFUSED and len(trap.when) == 1
    return alone and any(item.effects and (not trap.runners or item.runner in trap.runners) for item in measured)


def _joined(known: list[Finding], measured: list[Finding]) -> list[Finding]:
    """Return both without saying one thing twice: a row of our own gives its figures to a trap that says the same."""
    rest = [item for item in measured if item.verdict is not Verdict.NOT_RUN]
    found = []
    for item in known:
        own = next((row for row in rest if row.verdict is item.verdict), None)
        if own is not None:
            rest.remove(own)
            sources = "; ".join(part for part in (own.source, item.source) if part)
            item = evolve(
                item,
                measured=own.measured or item.measured,
                effects=own.effects,
                platform=own.platform,
                runner=own.runner,
                versions=own.versions,
                source=sources,
            )
        found.append(item)
    return found + rest


def word_finding(side: SideArguments, word: str) -> Finding:
    """Return the finding about a word that is no option of the engine: a launcher's option, a program, a model."""
    launcher = word.startswith("-")
    happens = (
        "the launcher's, not the engine's: it is not read" if launcher else "no option and no variable: it is not read"
    )
    return Finding(side=side.side, flag=shortened(word), value="", verdict=Verdict.UNKNOWN, happens=happens)


def figures(rows: Iterable[ArgumentRow]) -> str:
    """Return the largest effect of `rows` in words, with model, platform and versions; empty without a score."""
    held = [row for row in rows if row.effects]
    if not held:
        return ""
    row = max(held, key=lambda item: item.max_abs or 0.0)
    effect = max(reversed(row.effects), key=lambda item: item.max_abs)
    size = (
        f"max {effect.max_abs:.3g}, mean {effect.mean_abs:.3g} nats, {effect.differing} of {effect.tokens} tokens"
        if effect.differing
        else f"0 in all of {effect.tokens} tokens"
    )
    software = ", ".join(f"{name} {version}" for name, version in row.versions.items())
    runner = f", runner {row.runner}" if row.runner else ""
    pair = f"{spelled(row.value)} against {spelled(row.baseline)}"
    return f"{pair}: {size} ({effect.arm}, {row.dtype}, {row.model}; {row.platform}{runner}; {software})"


def _finding(side: SideArguments, setting: Setting, verdict: Verdict, happens: str) -> Finding:
    return Finding(side=side.side, flag=shortened(setting.flag), value=setting.shown, verdict=verdict, happens=happens)


def _holds(trap: Trap, side: SideArguments, setting: Setting, place: Place) -> bool:
    if trap.platforms and place.platform not in trap.platforms:
        return False
    return side.get(trap.when[0].flag) is setting and all(_met(item, side) for item in trap.when)


def _met(condition: Condition, side: SideArguments) -> bool:
    """Whether the side satisfies `condition`; an absent argument has its default where values are listed."""
    setting = side.get(condition.flag)
    if setting is None and not condition.values:
        return False
    value = side.default(condition.flag) if setting is None else setting.value
    listed = not condition.values or any(same(value, allowed) for allowed in condition.values)
    return listed and not any(same(value, banned) for banned in condition.excluded)


def _trap_finding(side: SideArguments, setting: Setting, trap: Trap, place: Place) -> Finding:
    argument = setting.argument
    case = place.case(argument.knob, setting.value) if argument else None
    return Finding(
        side=side.side,
        flag=shortened(setting.flag),
        value=setting.shown,
        verdict=MEASURED[trap.outcome],
        happens=trap.happens,
        measured=trap.effect,
        platform=", ".join(trap.platforms),
        runner=", ".join(trap.runners),
        versions={"known for": trap.versions} if trap.versions else {},
        source=trap.source,
        case=case,
        confirm="" if case else trap.confirm or (argument.confirm if argument else ""),
    )


def _measured(side: SideArguments, setting: Setting, place: Place) -> list[Finding]:
    """Return what the rows say: those with this value here, else that there are none and what others say."""
    argument = setting.argument
    if argument is None:
        return []
    rows = [row for row in side.table.rows if row.knob and row.knob == argument.knob and row.side == side.side]
    here = [row for row in rows if row.platform == place.platform]
    exact = [row for row in here if same(row.value, setting.value)]
    case = place.case(argument.knob, setting.value)
    if exact:
        return [_row_finding(side, setting, row, case) for row in exact]
    start = [row for row in here if row.effects and same(row.baseline, setting.value)]
    told = "measured cases start from this value" if start else _elsewhere(here, rows, setting)
    return [
        Finding(
            side=side.side,
            flag=shortened(setting.flag),
            value=setting.shown,
            verdict=Verdict.APPLIED if start else Verdict.NOT_RUN,
            happens=told or f"no case has shown on {place.platform} what it does",
            platform=place.platform,
            case=case,
            confirm="" if case else argument.confirm,
        )
    ]


def _elsewhere(here: list[ArgumentRow], rows: list[ArgumentRow], setting: Setting) -> str:
    """Return what this value does on other platforms, and what other values do on this one."""
    other = [row for row in rows if row not in here and same(row.value, setting.value)]
    parts = [f"on {row.platform} {row.outcome.value.replace('_', ' ')}: {figures([row]) or row.note}" for row in other]
    parts += [
        f"{spelled(row.value)} here {row.outcome.value.replace('_', ' ')}: {figures([row]) or row.note}" for row in here
    ]
    return "; ".join(("this value has not run here", *parts)) if parts else ""


def _row_finding(side: SideArguments, setting: Setting, row: ArgumentRow, case: ConfirmingCase | None) -> Finding:
    coupled = f"; it also changes {', '.join(row.coupled)}" if row.coupled else ""
    coupled += f"; not read back there: {', '.join(row.unseen)}" if row.unseen else ""
    note = f": {row.note}" if row.note else ""
    return Finding(
        side=side.side,
        flag=shortened(setting.flag),
        value=setting.shown,
        verdict=MEASURED[row.outcome],
        happens=_HAPPENS.get(row.outcome, "") + note + coupled,
        measured=figures([row]),
        effects=row.effects,
        platform=row.platform,
        runner=row.runner,
        versions=row.versions,
        source=f"case {row.label} of {row.experiment} ({row.case})",
        case=case,
    )


def _admits(knob: KnobDefinition, value: Value) -> bool:
    domain = knob.domain
    if isinstance(domain, Choice):
        return any(same(value, allowed) for allowed in domain.values)
    if isinstance(domain, IntRange):
        if not isinstance(value, int) or isinstance(value, bool) or value < domain.minimum:
            return False
        return domain.maximum is None or value <= domain.maximum
    if isinstance(domain, FloatRange):
        return domain.admits(value)
    return isinstance(value, str) and re.fullmatch(domain.pattern, value) is not None

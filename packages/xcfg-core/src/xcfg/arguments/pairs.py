"""What the two sides should agree on: set on one side only, or set differently."""

from __future__ import annotations

from collections.abc import Iterator

from xcfg.arguments.alone import Place, figures, same
from xcfg.arguments.settings import Setting, SideArguments, shortened, spelled
from xcfg.schema._base import Value
from xcfg.schema.arguments import EngineArgument
from xcfg.schema.doctor import ConfirmingCase, Finding, Verdict


def pair_findings(rollout: SideArguments, training: SideArguments, place: Place) -> Iterator[Finding]:
    """Yield a finding for each group that the sides do not share; nothing when one side's arguments are unknown."""
    if not (rollout.given and training.given):
        return
    groups = {
        setting.argument.group: None
        for side in (rollout, training)
        for setting in side.settings
        if setting.argument is not None and setting.argument.group
    }
    for group in groups:
        first, second = _given(rollout, group), _given(training, group)
        if first and second:
            yield from _both(rollout, first, training, second, place)
        elif first:
            yield from _one(rollout, first, training, group, place)
        elif second:
            yield from _one(training, second, rollout, group, place)


def _given(side: SideArguments, group: str) -> Setting | None:
    """Return what the side set in the group; a switch that is off says less than one that is on."""
    found = [item for item in side.settings if item.argument is not None and item.argument.group == group]
    return next((item for item in found if item.value is not False), found[0] if found else None)


def _meant(setting: Setting) -> Value:
    argument = setting.argument
    off = argument is not None and argument.switch and argument.sets is not None and setting.value is False
    return argument.default if off and argument is not None else setting.value


def _both(
    rollout: SideArguments, first: Setting, training: SideArguments, second: Setting, place: Place
) -> Iterator[Finding]:
    one, other = _meant(first), _meant(second)
    if same(one, other) and one is not None:
        return
    if one is None or other is None:
        happens = f"whether it equals {second.flag} of {training.runtime} depends on the model; a run reads both back"
        yield _finding(rollout, first, Verdict.NOT_RUN, happens, place)
        return
    happens = f"{rollout.runtime} has {spelled(one)}, {training.runtime} has {spelled(other)} ({second.flag})"
    knob = first.argument.knob if first.argument else ""
    case = place.case(knob, other, one)
    mirrored = second.argument.knob if second.argument else ""
    yield _finding(
        rollout, first, Verdict.UNEQUAL, happens, place, case or place.case(mirrored, one, other), aligned=True
    )


def _one(side: SideArguments, setting: Setting, other: SideArguments, group: str, place: Place) -> Iterator[Finding]:
    argument, value = setting.argument, _meant(setting)
    if argument is None or value is None or any(same(value, neutral) for neutral in argument.neutral):
        return
    against = next(iter(argument.neutral), None)
    counterparts = [item for item in other.table.arguments if item.group == group]
    defaults = _defaults(counterparts)
    if any(same(value, default) for default in defaults):
        return
    if not counterparts:
        happens = f"{other.runtime} has no such setting: nothing there can be made equal"
    elif defaults:
        names = " or ".join(item.flags[0] for item in counterparts)
        happens = f"{other.runtime} was given no {names}, which then means {spelled(defaults[0])}"
    else:
        names = " or ".join(item.flags[0] for item in counterparts)
        happens = f"{other.runtime} was given no {names}; its value then depends on the model or the launcher"
    against = defaults[0] if defaults else against
    yield _finding(side, setting, Verdict.ONE_SIDED, happens, place, place.case(argument.knob, value, against))


def _defaults(counterparts: list[EngineArgument]) -> list[Value]:
    return [item.default for item in counterparts if item.default is not None]


def _finding(
    side: SideArguments,
    setting: Setting,
    verdict: Verdict,
    happens: str,
    place: Place,
    case: ConfirmingCase | None = None,
    *,
    aligned: bool = False,
) -> Finding:
    argument = setting.argument
    rows = [
        row
        for row in side.table.rows
        if argument is not None
        and argument.knob
        and (row.knob, row.side, row.platform) == (argument.knob, side.side, place.platform)
        and (aligned or same(row.value, setting.value))
    ]
    return Finding(
        side=side.side,
        flag=shortened(setting.flag),
        value=setting.shown,
        verdict=verdict,
        happens=happens,
        measured=figures(rows),
        platform=place.platform if rows else "",
        case=case,
        confirm="" if case or argument is None else argument.confirm,
    )

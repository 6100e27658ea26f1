"""Two arguments of one side that cannot both hold: switches that set one thing to different values."""

from __future__ import annotations

from collections.abc import Iterator

from xcfg.arguments.settings import Setting, SideArguments, spelled
from xcfg.schema.doctor import Finding, Verdict


def conflict_findings(side: SideArguments) -> Iterator[Finding]:
    """Yield a finding for each knob or group that two switches of the side set to different values.

    Switches alone: `--bf16 --fp16` is one dtype named twice, while a switch beside an argument with a value may be
    meant (a master dtype beside a compute dtype).
    """
    chosen: dict[str, list[Setting]] = {}
    for setting in side.settings:
        argument = setting.argument
        if argument is not None and argument.switch and argument.sets is not None and setting.value is not False:
            chosen.setdefault(argument.knob or argument.group or argument.flags[0], []).append(setting)
    for settings in chosen.values():
        first = settings[0]
        others = [item for item in settings[1:] if item.value != first.value]
        if others:
            asked = " and ".join(f"--{item.flag} for {spelled(item.value)}" for item in others)
            yield Finding(
                side=side.side,
                flag=first.flag,
                value=first.shown,
                verdict=Verdict.CONFLICT,
                happens=f"it asks for {spelled(first.value)}, {asked}: one setting cannot have both",
                confirm="Keep the one that your engine is to run; what it does with both is not known here.",
            )

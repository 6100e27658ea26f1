"""From flags to settings: which argument of the table a flag is, and which value is meant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xcfg.errors import UsageError, did_you_mean
from xcfg.schema import codec
from xcfg.schema._base import Value
from xcfg.schema.arguments import ArgumentTable, EngineArgument
from xcfg.schema.knobs import Choice, FloatRange, IntRange

LONG = 120
"""Characters of a flag or a value that are shown."""
_STATES = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@dataclass(frozen=True)
class Setting:
    """One argument that was given. argument: None when the table does not have it; value: in the table's words."""

    flag: str
    raw: Any
    value: Value
    argument: EngineArgument | None = None

    @property
    def shown(self) -> str:
        """The value in words: as given, and as it is understood where that differs; a long one is cut."""
        given, meant = shortened(spelled(self.raw)), shortened(spelled(self.value))
        if self.argument is None or self.value is None or given == meant:
            return given
        return given if isinstance(self.raw, bool) else f"{given} ({meant})"


@dataclass(frozen=True)
class SideArguments:
    """One side: its runtime, the table of that runtime, what was given, and words that are no option."""

    side: str
    runtime: str
    table: ArgumentTable
    settings: tuple[Setting, ...] = ()
    words: tuple[str, ...] = ()
    given: bool = True
    _by_flag: dict[str, Setting] = field(default_factory=dict, compare=False, repr=False)

    def get(self, flag: str) -> Setting | None:
        """Return the setting that was given under any spelling of the argument that `flag` is one of."""
        if not self._by_flag:
            for setting in self.settings:
                names = setting.argument.flags if setting.argument else (setting.flag,)
                self._by_flag.update(dict.fromkeys(names, setting))
        return self._by_flag.get(flag)

    def default(self, flag: str) -> Value:
        """Return what the argument means when it is absent; None where that depends on something else."""
        return next((item.default for item in self.table.arguments if flag in item.flags), None)


def understand(side: str, runtime: str, table: ArgumentTable, given: Mapping[str, Any] | None) -> SideArguments:
    """Return `given` (flag -> value) as settings; None: nothing was given for this side.

    A dotted flag is looked up whole, then without its first parts, so that a launcher's nesting does not matter.
    Raises UsageError for an option without its value, a switch with one, or two spellings of one argument.
    """
    flags = {flag: argument for argument in table.arguments for flag in argument.flags}
    settings: list[Setting] = []
    taken: dict[int, str] = {}
    for name, raw in (given or {}).items():
        setting = _setting(side, name, raw, flags)
        settings.append(setting)
        if setting.argument is None:
            continue
        earlier = taken.setdefault(id(setting.argument), name)
        if earlier != name:
            first = next(item for item in settings if item.flag == earlier)
            if first.value != setting.value:
                raise UsageError(
                    f"{side}: {earlier!r} and {name!r} are one argument and have different values",
                    hint="Keep the one that your engine reads.",
                )
    return SideArguments(side, runtime, table, tuple(settings), given=given is not None)


def _setting(side: str, name: str, raw: Any, flags: Mapping[str, EngineArgument]) -> Setting:
    argument = _lookup(name, flags)
    off = False
    if argument is None and name.startswith("no-"):
        argument = _lookup(name.removeprefix("no-"), flags)
        off = argument is not None
    if argument is None:
        return Setting(name, raw, _scalar(raw))
    return Setting(name, raw, _value(side, name, not raw if off and isinstance(raw, bool) else raw, argument), argument)


def _lookup(name: str, flags: Mapping[str, EngineArgument]) -> EngineArgument | None:
    parts = name.split(".")
    for start in range(len(parts)):
        if found := flags.get(".".join(parts[start:])):
            return found
    return None


def _value(side: str, name: str, raw: Any, argument: EngineArgument) -> Value:
    if argument.switch:
        state = raw if isinstance(raw, bool) else _STATES.get(str(raw).lower())
        if state is None:
            raise UsageError(
                f"{side}: --{name} is a switch and stands before {shortened(spelled(raw))}",
                hint=f"Write --{name}, --no-{name}, or --{name}=true.",
            )
        return argument.sets if state and argument.sets is not None else state
    if raw is True and not any(isinstance(value, bool) for value in argument.values.values()):
        known = ", ".join(argument.values) or "a value"
        raise UsageError(f"{side}: --{name} has no value", hint=f"It takes {known}.")
    return _admitted(side, name, _meant(side, name, raw, argument), argument)


def _meant(side: str, name: str, raw: Any, argument: EngineArgument) -> Value:
    text = str(raw).lower() if isinstance(raw, (str, bool)) else codec.canonical_json(raw).decode()
    for spelling, meant in argument.values.items():
        if text == spelling.lower():
            return meant
    if isinstance(raw, list) and not any(spelling.startswith("[") for spelling in argument.values):
        raise UsageError(
            f"{side}: --{name} takes one value and was given {shortened(text)}",
            hint="A program and a model stand before the first option.",
        )
    return _scalar(raw)


def _admitted(side: str, name: str, value: Value, argument: EngineArgument) -> Value:
    """Return `value` where the engine can take it; UsageError names what it takes."""
    domain = argument.domain
    if domain is None or value is None:
        return value
    if isinstance(domain, Choice):
        if any(type(item) is type(value) and item == value for item in domain.values):
            return value
        names = [*(str(item) for item in domain.values), *argument.values]
        near = did_you_mean(str(value)[:LONG], names) if isinstance(value, str) else ""
        listed = f"It takes {', '.join(spelled(item) for item in domain.values)}, as far as the table knows the engine."
        hint = f"{near} {listed}" if near.startswith("Did") else listed
    elif isinstance(domain, IntRange):
        top = "" if domain.maximum is None else f" to {domain.maximum}"
        if type(value) is int and domain.minimum <= value and (domain.maximum is None or value <= domain.maximum):
            return value
        hint = f"It takes an integer from {domain.minimum}{top}."
    elif isinstance(domain, FloatRange):
        if domain.admits(value):
            return value
        hint = f"It takes a {domain.describe()}."
    else:
        if isinstance(value, str) and re.fullmatch(domain.pattern, value):
            return value
        hint = f"It takes text that matches {domain.pattern!r}."
    raise UsageError(f"{side}: {shortened(spelled(value))!r} is no value of --{name}", hint=hint)


def _scalar(raw: Any) -> Value:
    if raw is None or isinstance(raw, (bool, int, float, str)):
        return raw
    return codec.canonical_json(raw).decode()


def spelled(value: Any) -> str:
    """Return a value as people write it: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else codec.canonical_json(value).decode()


def shortened(text: str) -> str:
    """Return `text`, or its beginning and its length where it is long: what was typed is not echoed whole."""
    return text if len(text) <= LONG else f"{text[:LONG]}… ({len(text)} characters)"


def nearest(flag: str, table: ArgumentTable) -> str:
    """Return `Did you mean …?` for a flag that is not in the table; empty when nothing is near."""
    if len(flag) > LONG:
        return ""
    said = did_you_mean(flag, [name for argument in table.arguments for name in argument.flags])
    return said if said.startswith("Did you mean") else ""

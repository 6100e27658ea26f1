"""The tables of docs/reference/engine-knobs.md, from the argument tables that the installed runtimes ship."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from xcfg.plugin._resolve import resolve
from xcfg.plugin.manager import PluginManager
from xcfg.schema.arguments import ArgumentRow, ArgumentTable, Outcome

Table = Callable[[Iterable[str], Iterable[Iterable[object]]], str]
NOT_RUN = "not run"


def tables() -> list[tuple[str, ArgumentTable]]:
    """Return (runtime, table) of every runtime that ships one, by name."""
    records = (item.record for item in PluginManager.load().runtimes())
    return sorted(
        ((record.name, resolve(record.arguments)()) for record in records if record.arguments), key=lambda item: item[0]
    )


def knob_rows(table: Table) -> str:
    """Return, per runtime, one line per knob and value and one column per platform and runner."""
    return "\n".join(_engine(name, found, table) for name, found in tables())


def _engine(name: str, found: ArgumentTable, table: Table) -> str:
    columns = _columns(found)
    lines: dict[tuple[str, str, str, str], dict[tuple[str, str], ArgumentRow]] = {}
    for row in found.rows:
        line = (row.side, row.knob, json.dumps(row.value), json.dumps(row.baseline))
        lines.setdefault(line, {})[row.platform, row.runner] = row
    heads = ("side", "knob", "value, against", *(" ".join(part for part in column if part) for column in columns))
    cells = (
        (side, f"`{knob}`", f"`{value}`, `{against}`", *(_cell(rows.get(column)) for column in columns))
        for (side, knob, value, against), rows in sorted(lines.items())
    )
    return f"### {name}\n\n{_captions(found)}\n{table(heads, cells)}"


def _columns(found: ArgumentTable) -> list[tuple[str, str]]:
    """Return (platform, runner): those that ran, and the GPU's ones, which stand there also before they ran."""
    ran = {(row.platform, row.runner) for row in found.rows}
    runners = {runner for _, runner in ran if runner}
    return sorted(ran | {("cuda", runner) for runner in ({"v1", "v2"} if runners else {""})})


def _cell(row: ArgumentRow | None) -> str:
    if row is None:
        return NOT_RUN
    said = row.outcome.value.replace("_", " ")
    if row.outcome is Outcome.APPLIED and row.effects:
        effect = max(row.effects, key=lambda item: item.max_abs)
        unseen = f"; not read back: {', '.join(row.unseen)}" if row.unseen else ""
        tokens = f"{effect.differing} of {effect.tokens} tokens"
        return f"{said}: max {effect.max_abs:.3g}, mean {effect.mean_abs:.3g}, {tokens}{unseen}"
    return f"{said}: {row.note}" if row.note else said


def _captions(found: ArgumentTable) -> str:
    told = dict.fromkeys(_caption(row) for row in found.rows if row.effects)
    return "".join(f"- {line}\n" for line in told)


def _caption(row: ArgumentRow) -> str:
    software = ", ".join(f"{name} {version}" for name, version in row.versions.items())
    place = " ".join(part for part in (row.platform, row.runner) if part)
    return f"{place}: {software}; {row.device}; {row.model}; {row.dtype}; experiment `{row.experiment}`"


def trap_rows(table: Table) -> str:
    """Return, per runtime, what is known of arguments and is no single case of ours."""
    return "\n".join(f"### {name}\n\n{table(HEADS, _traps(found))}" for name, found in tables())


HEADS = ("arguments", "where", "outcome", "what happens", "measured", "source")


def _traps(found: ArgumentTable) -> Iterator[tuple[object, ...]]:
    for trap in found.traps:
        given = " and ".join(_condition(item) for item in trap.when)
        where = ", ".join((*trap.platforms, *(f"runner {runner}" for runner in trap.runners))) or "everywhere"
        source = "; ".join(part for part in (trap.versions, trap.source) if part)
        yield given, where, trap.outcome.value.replace("_", " "), trap.happens, trap.effect, source


def _condition(item: Any) -> str:
    values = " or ".join(json.dumps(value) for value in item.values)
    excluded = " or ".join(json.dumps(value) for value in item.excluded)
    rest = f" {values}" if values else f" not {excluded}" if excluded else ""
    return f"`{item.flag}`{rest}"


def argument_rows(table: Table) -> str:
    """Return, per runtime, every argument that `xcfg doctor` understands."""
    there = PluginManager.load().knobs()
    heads = ("spellings", "knob", "must agree as", "absent means", "adds nothing as")
    return "\n".join(
        f"### {name}\n\n"
        + table(
            heads,
            (
                (
                    ", ".join(f"`{flag}`" for flag in item.flags),
                    f"`{item.knob}`" if item.knob in there else "",
                    item.group,
                    "" if item.default is None else json.dumps(item.default),
                    ", ".join(json.dumps(value) for value in item.neutral),
                )
                for item in found.arguments
            ),
        )
        for name, found in tables()
    )

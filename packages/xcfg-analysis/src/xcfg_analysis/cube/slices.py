"""Which slices of the experiment a case belongs to, as `xcfg run --slice` would select it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Role

from xcfg_analysis.cube.rows import Cube, Row

GLOBS = ("label", "case_id", "role")
Knobs = Mapping[str, KnobDefinition]


def slices_of(cube: Cube, row: Row, knobs: Knobs | None = None) -> tuple[str, ...]:
    """Return the slices whose every term holds for the row, by name. A control belongs to none.

    knobs: for the aliases in which a file may have written a value.
    """
    if row.role != Role.CASE.value:
        return ()
    slices: Mapping[str, Mapping[str, Sequence[Any]]] = cube.experiment.get("slices") or {}
    known = knobs or {}
    return tuple(
        name
        for name, terms in sorted(slices.items())
        if all(_holds(row, key, values, known) for key, values in terms.items())
    )


def _holds(row: Row, key: str, values: Sequence[Any], knobs: Knobs) -> bool:
    """Whether what the row asks for at `key` is among `values`; a path of both sides has to match on both."""
    if key in GLOBS:
        return any(fnmatchcase(str(getattr(row, key)), str(pattern)) for pattern in values)
    path, at, side = key.partition("@")
    names = (f"{path}@{side}", path) if at else (path, f"{path}@rollout", f"{path}@training")
    asked = [row.axes[name].requested for name in names if name in row.axes]
    if path.startswith("operators."):
        asked = [str(value).partition(" ")[0] for value in asked]
    aliases = knobs[path].aliases if path in knobs else {}
    wanted = [aliases.get(value, value) if isinstance(value, str) else value for value in values]
    return bool(asked) and all(any(_same(value, item) for item in wanted) for value in (asked[:1] if at else asked))


def _same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and bool(first == second)

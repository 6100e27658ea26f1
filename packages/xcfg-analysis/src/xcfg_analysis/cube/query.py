"""Questions to a cube: rows that match, a named slice, and one figure over two axes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from xcfg.errors import NothingSelectedError, UnknownNameError, UsageError, did_you_mean
from xcfg.schema import codec
from xcfg.schema.cube import PIVOT, Pivot
from xcfg.schema.result import EdgeResult

from xcfg_analysis.cube.rows import Cube, Row
from xcfg_analysis.cube.slices import Knobs, slices_of

OWN = ("role", "status", "label", "assessment")
"""What a row can be asked for beside its axes."""
EDGE_FIGURES = tuple(
    name
    for name in EdgeResult.__struct_fields__
    if name not in ("name", "first", "second", "status", "comparable", "reason", "compute_dtype", "worst", "aliases")
    and not name.startswith("by_")
)
"""Figures of an edge that are one number."""


def parse_where(words: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return axis -> wanted values of `KNOB=VALUE` words; a value is JSON, or else text. Raises UsageError."""
    wanted: dict[str, tuple[Any, ...]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{word!r} is no condition", hint="As in --where training.compute_dtype=float32.")
        wanted[name] = (*wanted.get(name, ()), _value(text))
    return wanted


def where(cube: Cube, wanted: Mapping[str, Sequence[Any]]) -> Cube:
    """Return the cube with the rows that match every axis; values are those that were asked for.

    An axis is a knob, `knob@side`, `operators.<operation>.<side>`, or one of OWN. Raises UnknownNameError for an axis
    that no row has, NothingSelectedError when no row is left.
    """
    known = {*OWN, *(key for row in cube.rows for key in row.axes)}
    for name in wanted:
        if name not in known:
            raise UnknownNameError(f"no row has the axis {name!r}", hint=did_you_mean(name, known))
    kept = tuple(row for row in cube.rows if all(_is_one(axis_value(row, name), of) for name, of in wanted.items()))
    if not kept:
        asked = ", ".join(f"{name}={' or '.join(map(_shown, of))}" for name, of in wanted.items())
        has = {name: sorted({_shown(axis_value(row, name)) for row in cube.rows}) for name in wanted}
        there = "; ".join(f"{name}: {', '.join(values)}" for name, values in has.items())
        raise NothingSelectedError(f"no row has {asked}", hint=f"The values that are there: {there}.")
    return codec.evolve(cube, rows=kept)


def named_slice(cube: Cube, name: str, knobs: Knobs | None = None) -> Cube:
    """Return the cube with the rows of a slice that the experiment names; controls are in none.

    knobs: for the aliases in which a file may have written a value. Raises UnknownNameError for another name,
    NothingSelectedError when no row is in it.
    """
    slices = cube.experiment.get("slices") or {}
    if name not in slices:
        hint = did_you_mean(name, slices) or "It names none; `slices` of the experiment file names them."
        raise UnknownNameError(f"the experiment has no slice {name!r}", hint=hint)
    kept = tuple(row for row in cube.rows if name in slices_of(cube, row, knobs))
    if not kept:
        labels = ", ".join(row.label for row in cube.rows)
        raise NothingSelectedError(f"no row is in the slice {name!r}", hint=f"Rows that are there: {labels}.")
    return codec.evolve(cube, rows=kept)


def pivot(cube: Cube, rows: str, columns: str, figure: str) -> Pivot:
    """Return `figure` over the axes `rows` and `columns`. Raises UnknownNameError, NothingSelectedError, UsageError."""
    if rows == columns:
        raise UsageError(f"{rows!r} is given for both axes", hint="A pivot needs two axes.")
    known = {key for row in cube.rows for key in row.axes}
    for name in (rows, columns):
        if name not in known:
            raise UnknownNameError(f"no row has the axis {name!r}", hint=did_you_mean(name, known))
    kept = [row for row in cube.rows if row.role == "case" and set(row.delta) <= {rows, columns}]
    if not kept:
        raise NothingSelectedError(f"no case changes only {rows!r} and {columns!r}", hint="Plan them as a product.")
    found = {(_key(axis_value(row, rows)), _key(axis_value(row, columns))): figure_of(row, figure) for row in kept}
    down = list({_key(axis_value(row, rows)): axis_value(row, rows) for row in kept}.items())
    across = list({_key(axis_value(row, columns)): axis_value(row, columns) for row in kept}.items())
    return Pivot(
        schema_version=PIVOT,
        rows=rows,
        columns=columns,
        figure=figure,
        row_values=tuple(value for _, value in down),
        column_values=tuple(value for _, value in across),
        cells=tuple(tuple(found.get((first, second)) for second, _ in across) for first, _ in down),
    )


def axis_value(row: Row, name: str) -> Any:
    """Return what a row asked for on an axis, or one of its OWN fields; None where it has none."""
    if name == "assessment":
        return row.assessment.assessment if row.assessment is not None else ""
    if name in OWN:
        return getattr(row, name)
    return row.axes[name].requested if name in row.axes else None


def figure_of(row: Row, name: str) -> Any:
    """Return a figure of a row: `rms` of the verdict edge, `EDGE.rms`, `status`, `assessment`, `seconds.score`.

    None where the row has no such edge; UnknownNameError for a figure that no row could have.
    """
    if name in ("status", "assessment"):
        return axis_value(row, name)
    place, _, figure = name.rpartition(".")
    if place == "seconds":
        return row.seconds.get(figure)
    if figure not in EDGE_FIGURES:
        raise UnknownNameError(
            f"there is no figure {name!r}",
            hint=did_you_mean(figure, (*EDGE_FIGURES, "status", "assessment", "seconds.build", "seconds.score")),
        )
    edge = row.edges.get(place or row.verdict_edge)
    return None if edge is None else getattr(edge, figure)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_one(value: Any, of: Sequence[Any]) -> bool:
    return any(_key(value) == _key(item) for item in of)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

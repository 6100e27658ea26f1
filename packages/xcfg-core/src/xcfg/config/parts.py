"""The list-shaped parts of an experiment: interventions, align, constraints, slices, controls, limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcfg.config.flatten import OPERATORS
from xcfg.config.operators import parse_choice, split_operator_path
from xcfg.errors import ConfigError
from xcfg.schema.codec import plain
from xcfg.schema.experiment import (
    MAX_CASES_LIMIT,
    Align,
    AlignInput,
    Axis,
    ConstraintInput,
    ControlsInput,
    InterventionV1,
    InterventionV2,
    LimitsInput,
)
from xcfg.schema.knobs import Constraint

_COUNTS = ("repeats", "fresh_processes", "shuffled", "cold", "warm", "at_end")


def parse_axes(items: Sequence[InterventionV1 | InterventionV2], *, source: str) -> tuple[Axis, ...]:
    """Return the interventions as axes; values of operator paths are checked, knob values stay as written."""
    axes = []
    for index, item in enumerate(items):
        path = f"$.interventions[{index}]"
        side = item.side if isinstance(item, InterventionV2) else None
        _check_path(item.path, source, f"{path}.path")
        values = _values(item, isinstance(item, InterventionV2), side, source, path)
        axes.append(Axis(path=item.path, values=values, side=side))
    return tuple(axes)


def _values(
    item: InterventionV1 | InterventionV2, operators: bool, side: str | None, source: str, path: str
) -> tuple[Any, ...]:
    is_operator = operators and item.path.startswith(OPERATORS + ".")
    if is_operator:
        split_operator_path(item.path, source=source, path=f"{path}.path")
        if side is not None:
            raise ConfigError(
                "an operator path names its side itself",
                source=source,
                path=f"{path}.side",
                hint="Remove `side`.",
            )
    values: list[Any] = []
    for index, value in enumerate(item.values):
        where = f"{path}.values[{index}]"
        if is_operator:
            choice = parse_choice(value, source=source, path=where)
            values.append(plain(choice) if choice.options else choice.backend)
        else:
            values.append(_scalar(value, source, where))
    return tuple(values)


def parse_align(items: list[AlignInput], *, source: str) -> tuple[Align, ...]:
    """Return the align entries; a path that stands twice with one target is refused."""
    seen: set[tuple[str, str]] = set()
    for index, item in enumerate(items):
        _check_path(item.path, source, f"$.align[{index}].path")
        if (item.path, item.to) in seen:
            raise ConfigError(
                f"{item.path!r} to {item.to!r} stands twice",
                source=source,
                path=f"$.align[{index}]",
                hint="Keep one.",
            )
        seen.add((item.path, item.to))
    return tuple(Align(path=item.path, to=item.to) for item in items)


def parse_constraints(items: list[ConstraintInput], *, source: str) -> tuple[Constraint, ...]:
    """Return the constraints; `when` must name something, since an empty one would filter every cell."""
    constraints = []
    for index, item in enumerate(items):
        path = f"$.constraints[{index}]"
        if not item.code.strip():
            raise ConfigError(
                "the code is empty",
                source=source,
                path=f"{path}.code",
                hint="Name it; filtered cells carry it.",
            )
        if not item.when:
            raise ConfigError(
                "`when` is empty and would filter every cell",
                source=source,
                path=f"{path}.when",
                hint="Name a knob.",
            )
        when = _conditions(item.when, source, f"{path}.when")
        require = _conditions(item.require, source, f"{path}.require")
        constraints.append(Constraint(code=item.code, when=when, require=require, reason=item.reason))
    return tuple(constraints)


def _conditions(mapping: dict[str, list[Any]], source: str, path: str) -> dict[str, tuple[Any, ...]]:
    for key, values in mapping.items():
        _check_path(key, source, f"{path}.{key}")
        if not values:
            raise ConfigError(f"{key!r} lists no value", source=source, path=f"{path}.{key}", hint="List at least one.")
        for index, value in enumerate(values):
            _scalar(value, source, f"{path}.{key}[{index}]")
    return {key: tuple(values) for key, values in mapping.items()}


def parse_slices(slices: dict[str, dict[str, list[Any]]], *, source: str) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Return name -> path -> values."""
    for name in slices:
        if not name.strip():
            raise ConfigError("a slice has no name", source=source, path="$.slices", hint="Name it, for example `ci`.")
    return {name: _conditions(body, source, f"$.slices.{name}") for name, body in slices.items()}


def parse_controls(controls: ControlsInput, *, source: str) -> ControlsInput:
    """Return the controls; counts are not negative."""
    for name in _COUNTS:
        count = getattr(controls, name)
        if count < 0:
            raise ConfigError(f"{count} is negative", source=source, path=f"$.controls.{name}", hint="Give 0 or more.")
    return controls


def parse_limits(limits: LimitsInput, *, source: str) -> int:
    """Return max_cases, 1 to 4096."""
    if not 1 <= limits.max_cases <= MAX_CASES_LIMIT:
        raise ConfigError(
            f"max_cases is {limits.max_cases}",
            source=source,
            path="$.limits.max_cases",
            hint=f"Give 1 to {MAX_CASES_LIMIT}; a larger grid is split into several experiments.",
        )
    return limits.max_cases


def _check_path(path: str, source: str, where: str) -> None:
    if not path.strip():
        raise ConfigError("the path is empty", source=source, path=where, hint="`xcfg knobs list` shows the paths.")


def _scalar(value: Any, source: str, where: str) -> Any:
    if value is None or not isinstance(value, (bool, int, float, str)):
        raise ConfigError(
            f"{value!r} is not a knob value",
            source=source,
            path=where,
            hint="Give true, false, a number or a string.",
        )
    return value

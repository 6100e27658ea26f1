"""Knob values as people write them, nested or dotted, as one flat mapping."""

from __future__ import annotations

from typing import Any

from xcfg.config.operators import parse_choice, split_operator_path
from xcfg.errors import ConfigError

OPERATORS = "operators"
_OPERATOR_DEPTH = 3  # operators.<operation>.<side>


def flatten(
    values: dict[str, Any], *, source: str, path: str, operators: bool = False, sides: bool = False
) -> dict[str, Any]:
    """Return {"batch": {"size": 8}} and {"batch.size": 8} alike as {"batch.size": 8}.

    operators: `operators.<op>.<side>` may stand among the values, as an id or {backend, options}.
    sides: `batch.size@rollout` may stand beside `batch.size`.
    Raises ConfigError when a path stands both nested and dotted, or a value is no scalar.
    """
    flat: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for dotted, where, value in _leaves(values, "", path, operators):
        if dotted in flat:
            raise ConfigError(
                f"{dotted!r} stands twice, nested and dotted",
                source=source,
                path=where,
                hint=f"It also stands at {origin[dotted]}; keep one.",
            )
        flat[dotted] = _leaf(dotted, value, source, where, operators=operators, sides=sides)
        origin[dotted] = where
    return flat


def _leaves(node: dict[str, Any], prefix: str, path: str, operators: bool) -> list[tuple[str, str, Any]]:
    found: list[tuple[str, str, Any]] = []
    for key, value in node.items():
        dotted = f"{prefix}.{key}" if prefix else key
        where = f"{path}.{key}"
        is_choice = operators and dotted.startswith(OPERATORS + ".") and dotted.count(".") >= _OPERATOR_DEPTH - 1
        if isinstance(value, dict) and not is_choice:
            found += _leaves(value, dotted, where, operators) or [(dotted, where, value)]
        else:
            found.append((dotted, where, value))
    return found


def _leaf(dotted: str, value: Any, source: str, where: str, *, operators: bool, sides: bool) -> Any:
    if operators and dotted.startswith(OPERATORS + "."):
        split_operator_path(dotted, source=source, path=where)
        return parse_choice(value, source=source, path=where)
    if "@" in dotted and not sides:
        raise ConfigError(
            f"{dotted!r} sets one side only", source=source, path=where, hint="Only v2 has one-sided values."
        )
    if value is None or not isinstance(value, (bool, int, float, str)):
        kind = "an empty object" if value == {} else "null" if value is None else f"a {type(value).__name__}"
        raise ConfigError(
            f"the value of {dotted!r} is {kind}, not a scalar",
            source=source,
            path=where,
            hint="Give true, false, a number or a string.",
        )
    return value

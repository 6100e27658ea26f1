"""The `operators` mapping: operation -> side -> a backend id, or {backend, options}."""

from __future__ import annotations

import re
from typing import Any

from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema.operators import OperatorChoice

SIDES = ("rollout", "training")
V1_OPERATION = "selected_logprob"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_BACKEND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+-]{0,127}")


def parse_operators(
    mapping: dict[str, dict[str, Any]], *, source: str, only: tuple[str, ...] = ()
) -> dict[str, dict[str, OperatorChoice]]:
    """Return the mapping with each choice an OperatorChoice. only: the operations that may stand."""
    parsed: dict[str, dict[str, OperatorChoice]] = {}
    for operation, sides in mapping.items():
        path = f"$.operators.{operation}"
        check_operation(operation, source=source, path=path)
        if only and operation not in only:
            raise ConfigError(
                f"the operator {operation!r} does not exist in v1",
                source=source,
                path=path,
                hint=f"v1 knows {', '.join(only)}; other operators need an experiment_config.v2.",
            )
        if not sides:
            raise ConfigError(
                f"{operation!r} names no side",
                source=source,
                path=path,
                hint="Name rollout, training or both.",
            )
        for side in sides:
            check_side(side, source=source, path=f"{path}.{side}")
        parsed[operation] = {
            side: parse_choice(choice, source=source, path=f"{path}.{side}") for side, choice in sides.items()
        }
    return parsed


def parse_choice(value: Any, *, source: str, path: str) -> OperatorChoice:
    """Return an id or {backend, options} as an OperatorChoice; ConfigError otherwise."""
    if isinstance(value, str):
        return OperatorChoice(backend=_backend(value, source, path))
    if not isinstance(value, dict):
        raise ConfigError(
            f"{value!r} is no operator choice",
            source=source,
            path=path,
            hint='Give an id or {"backend": id, "options": {}}.',
        )
    for key in value:
        if key not in ("backend", "options"):
            raise ConfigError(
                f"unknown field {key!r}",
                source=source,
                path=f"{path}.{key}",
                hint=did_you_mean(key, ("backend", "options")),
            )
    if not isinstance(value.get("backend"), str):
        raise ConfigError(
            "`backend` must be a backend id",
            source=source,
            path=f"{path}.backend",
            hint="Write text in quotes.",
        )
    options = value.get("options", {})
    if not isinstance(options, dict):
        raise ConfigError("`options` must be an object", source=source, path=f"{path}.options", hint="For example {}.")
    return OperatorChoice(backend=_backend(value["backend"], source, f"{path}.backend"), options=options)


def split_operator_path(dotted: str, *, source: str, path: str) -> tuple[str, str]:
    """Return (operation, side) of `operators.<operation>.<side>`; ConfigError when it is not one."""
    parts = dotted.split(".")
    if len(parts) != 3:
        raise ConfigError(
            f"{dotted!r} is no operator path",
            source=source,
            path=path,
            hint="Write operators.<operation>.<side>, for example operators.selected_logprob.rollout.",
        )
    check_operation(parts[1], source=source, path=path)
    check_side(parts[2], source=source, path=path)
    return parts[1], parts[2]


def check_operation(operation: str, *, source: str, path: str) -> None:
    """Refuse a name that no operation can have."""
    name, _, side = operation.rpartition(".")
    if side in SIDES and _NAME.fullmatch(name):
        raise ConfigError(
            f"{operation!r} holds a side, which stands one level below its operator",
            source=source,
            path=path,
            hint=f'Write "{name}": {{"{side}": "<backend id>"}}.',
        )
    if not _NAME.fullmatch(operation):
        raise ConfigError(
            f"{operation!r} is no operator name",
            source=source,
            path=path,
            hint="For example selected_logprob or attention.",
        )


def check_side(side: str, *, source: str, path: str) -> None:
    """Refuse a side that nothing is planned for; the reference scorer's operator is no choice."""
    if side not in SIDES:
        raise ConfigError(
            f"{side!r} is no side that can be chosen for",
            source=source,
            path=path,
            hint="The sides are rollout and training.",
        )


def _backend(value: str, source: str, path: str) -> str:
    if not _BACKEND.fullmatch(value):
        raise ConfigError(
            f"{value!r} is no backend id",
            source=source,
            path=path,
            hint="`xcfg ops list` shows the ids; production, reference and native are policies.",
        )
    return value

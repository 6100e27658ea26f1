"""What no experiment may hold, at any depth: forbidden keys, and values that JSON cannot carry exactly."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from xcfg.errors import ConfigError

MAX_DEPTH = 64
MAX_INTEGER = 2**53 - 1
"""Largest integer that canonical JSON (RFC 8785) can carry."""

TOLERANCE_KEYS = frozenset({"threshold", "fixed_threshold", "tolerance", "atol", "rtol"})
POLICY_KEYS = frozenset(
    {
        "execution",
        "execution_mode",
        "plan_only",
        "authorisation",
        "authorization",
        "allow_smoke_operators",
        "operator_cases",
    }
)
_POLICY_PREFIX = "expected_"
_UNICODE = "Write text that UTF-8 can hold."


def check_document(document: Any, *, source: str) -> dict[str, Any]:
    """Return `document` when it is an object without forbidden content; ConfigError otherwise.

    Tolerance keys are refused everywhere; keys that carry execution mode, authorisation or expected outcomes
    are refused at the top level and at any depth of `scenario`.
    """
    if not isinstance(document, dict):
        raise ConfigError("an experiment is a JSON object", source=source, path="$", hint="Start the file with `{`.")
    check_tree(document, source=source, path="$")
    for key, value in document.items():
        _refuse_policy(key, source, f"$.{key}")
        if key == "scenario":
            _scan_policy(value, source, "$.scenario")
    return document


def check_tree(node: Any, *, source: str, path: str, depth: int = 0) -> None:
    """Refuse tolerance keys, numbers beyond canonical JSON, text that is no Unicode, deep nesting."""
    if depth > MAX_DEPTH:
        raise ConfigError("nested too deeply", source=source, path=path, hint=f"At most {MAX_DEPTH} levels.")
    if node is None or isinstance(node, bool):
        return
    if isinstance(node, dict):
        for key, value in node.items():
            _check_key(key, source, path)
            check_tree(value, source=source, path=f"{path}.{key}", depth=depth + 1)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            # Matrices of small integers and flags are nearly all of a large file.
            kind = type(value)
            if kind is not bool and (kind is not int or not -MAX_INTEGER <= value <= MAX_INTEGER):
                check_tree(value, source=source, path=f"{path}[{index}]", depth=depth + 1)
    else:
        _check_scalar(node, source, path)


def _check_scalar(node: Any, source: str, path: str) -> None:
    if isinstance(node, str):
        if not _encodable(node):
            raise ConfigError(
                "the text is not valid Unicode (a lone surrogate)", source=source, path=path, hint=_UNICODE
            )
    elif isinstance(node, int):
        if not -MAX_INTEGER <= node <= MAX_INTEGER:
            raise ConfigError(
                "the integer is beyond what JSON carries exactly",
                source=source,
                path=path,
                hint=f"At most {MAX_INTEGER} in magnitude; write larger values as text.",
            )
    elif isinstance(node, float):
        if not math.isfinite(node):
            raise ConfigError("the number is not finite", source=source, path=path, hint="Use a finite number.")
    else:
        raise ConfigError(
            f"a {type(node).__name__} is not a JSON value",
            source=source,
            path=path,
            hint="JSON has objects, lists, text, numbers, true, false and null.",
        )


def _check_key(key: Any, source: str, path: str) -> None:
    if not isinstance(key, str) or not _encodable(key):
        raise ConfigError(f"the key {key!r} is not valid text", source=source, path=path, hint=_UNICODE)
    if not TOLERANCE_KEYS.isdisjoint(_parts(key)):
        raise ConfigError(
            f"the key {key!r} is not allowed anywhere in an experiment",
            source=source,
            path=f"{path}.{key}",
            hint="Remove it. The only threshold is the packaged numerical contract's; nothing changes it.",
        )


def _scan_policy(node: Any, source: str, path: str) -> None:
    if isinstance(node, dict):
        for key, value in node.items():
            _refuse_policy(key, source, f"{path}.{key}")
            _scan_policy(value, source, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            if isinstance(value, (dict, list)):
                _scan_policy(value, source, f"{path}[{index}]")


def _refuse_policy(key: str, source: str, path: str) -> None:
    for part in _parts(key):
        if part in POLICY_KEYS or part.startswith(_POLICY_PREFIX):
            raise ConfigError(
                f"the key {key!r} is not allowed in an experiment",
                source=source,
                path=path,
                hint="Remove it. What to execute and what to permit belong to the command line "
                "(`xcfg plan`, `xcfg run`, `--allow-smoke-operators`); outcomes are measured, not declared.",
            )


@lru_cache(maxsize=1024)
def _parts(key: str) -> tuple[str, ...]:
    """Return the parts of a dotted key, so that neither case nor hyphens nor dots hide a forbidden one."""
    return tuple(part.strip().casefold().replace("-", "_") for part in key.split("."))


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

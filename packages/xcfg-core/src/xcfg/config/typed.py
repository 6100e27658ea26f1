"""Part of a document as a Struct, with errors that say exactly where and what to write instead."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema.codec import convert

T = TypeVar("T")
_STEP = re.compile(r"\.(?P<field>[^.\[]+)|\[(?P<index>\d+)\]|(?P<member>\[\.\.\.\])")
_EXPECTED = re.compile(r"Expected `(\w+)")
_WRITE = {
    "object": "Write an object: { … }.",
    "array": "Write a list: [ … ].",
    "str": "Write text in quotes.",
    "int": "Write a whole number, without quotes and without a point; true and false are no numbers.",
    "bool": "Write true or false, without quotes.",
}
_CHOICES = {
    "strategy": "one_at_a_time or pairwise; v2 also has product and zip.",
    "side": "rollout or training.",
    "to": "rollout, training or reference.",
}

Step = str | int


def convert_at(document: Any, kind: type[T], *, source: str, path: str) -> T:
    """As codec.convert, for a part of the document that stands at `path`; the error names the very member."""
    try:
        return convert(document, kind)
    except ConfigError as error:
        message = error.message.removeprefix(f"{error.path}: ")
        steps, message = _locate(document, kind, error.path, message)
        where = path + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
        raise ConfigError(message, source=source, path=where, hint=_hint(message, kind, steps)) from None


def _locate(document: Any, kind: type[Any], path: str, message: str) -> tuple[list[Step], str]:
    """Return the steps to the fault. The decoder writes `[...]` for a member of a mapping; find out which."""
    steps: list[Step] = []
    found = list(_STEP.finditer(path.removeprefix("$")))
    position = 0
    while position < len(found):
        match = found[position]
        if match["member"] is None:
            steps.append(int(match["index"]) if match["index"] else match["field"])
            position += 1
            continue
        for key, value in _at(document, steps).items():
            alone = _replaced(document, steps, {key: value})
            try:
                convert(alone, kind)
            except ConfigError as error:
                steps.append(key)
                document, message = alone, error.message.removeprefix(f"{error.path}: ")
                found = list(_STEP.finditer(error.path.removeprefix("$")))
                break
        else:
            return steps, message
        position += 1
    return steps, message


def _at(document: Any, steps: list[Step]) -> Any:
    for step in steps:
        document = document[step]
    return document


def _replaced(document: Any, steps: list[Step], value: Any) -> Any:
    """Return `document` with `value` at `steps`; what lies beside the path is shared, not copied."""
    if not steps:
        return value
    copy: Any = dict(document) if isinstance(document, dict) else list(document)
    copy[steps[0]] = _replaced(document[steps[0]], steps[1:], value)
    return copy


def _hint(message: str, kind: type[Any], steps: list[Step]) -> str:
    fields: tuple[str, ...] = getattr(kind, "__struct_fields__", ())
    _, unknown, rest = message.partition("unknown field `")
    if unknown:
        return did_you_mean(rest.rstrip("`"), fields) if not steps else "Remove it or correct its name."
    if "missing required field" in message:
        return "Add it." if steps else "Add it. Fields: " + ", ".join(fields) + "."
    if "Invalid enum value" in message and steps:
        return _CHOICES.get(str(steps[-1]), "")
    expected = _EXPECTED.search(message)
    return _WRITE.get(expected[1], "") if expected else ""

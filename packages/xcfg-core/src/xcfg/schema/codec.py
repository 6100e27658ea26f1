"""The only module that calls msgspec and json to decode or encode; its errors carry file and JSON path.

Content ids use canonical JSON (RFC 8785), so that key order, spacing and number spelling do not matter.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import rfc8785

from xcfg.errors import ConfigError

T = TypeVar("T")
MAX_BYTES = 512 * 1024 * 1024
MAX_DEPTH = 64


def parse_strict(text: str | bytes, *, source: str = "") -> Any:
    """Return the JSON document `text`; refuse duplicate keys, NaN, Infinity, lone surrogates and deep nesting.

    Raises ConfigError with the file and, for a duplicate key, the key.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in items:
            if key in seen:
                raise ConfigError(
                    f"the key {key!r} stands twice in one object", source=source, hint="Keep one of them."
                )
            seen[key] = value
        return seen

    def constant(name: str) -> float:
        raise ConfigError(f"{name} is not JSON", source=source, hint="Use a finite number.")

    if len(text) > MAX_BYTES:
        raise ConfigError(f"the file has {len(text)} bytes, more than {MAX_BYTES}", source=source)
    try:
        raw = text.decode("utf-8") if isinstance(text, bytes) else text
        document = json.loads(raw, object_pairs_hook=pairs, parse_constant=constant)
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8: {error.reason} at byte {error.start}", source=source) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg} at line {error.lineno} column {error.colno}", source=source) from None
    except RecursionError:
        raise ConfigError("nested too deeply", source=source, hint=f"At most {MAX_DEPTH} levels.") from None
    except ValueError as error:  # an integer with more digits than Python converts
        raise ConfigError(f"not JSON: {error}", source=source) from None
    _check(document, source, "$", 0)
    if "\\ud" in raw.lower():  # text that came as UTF-8 holds no lone surrogate, an escape may
        _check_text(document, source, "$")
    return document


def _unique_pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) != len(items):
        raise ValueError("a key stands twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(name)


_ROWS = json.JSONDecoder(object_pairs_hook=_unique_pairs, parse_constant=_no_constant)
_SCALARS = frozenset((str, int, float, bool, type(None)))


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return one line that holds an object of scalars, several times faster than `parse_strict`.

    None for whatever is not plainly that, escapes included; `parse_strict` then says what it is.
    """
    if b"\\" in line:
        return None
    try:
        row = _ROWS.decode(line.decode("utf-8"))
    except (ValueError, RecursionError):  # also what json and UTF-8 raise
        return None
    if type(row) is not dict or not _SCALARS.issuperset(map(type, row.values())):
        return None
    return row if all(value - value == 0 for value in row.values() if type(value) is float) else None


def _check_text(node: Any, source: str, path: str) -> None:
    if isinstance(node, dict):
        for key, value in node.items():
            _check_text(key, source, path)
            _check_text(value, source, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            _check_text(value, source, f"{path}[{index}]")
    elif isinstance(node, str) and not is_unicode(node):
        raise ConfigError("the text is not valid Unicode (a lone surrogate)", source=source, path=path)


def is_unicode(text: str) -> bool:
    """Whether UTF-8, and so JSON, can hold the text: no lone surrogate, as stands for a byte of a path that is none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check(node: Any, source: str, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError("nested too deeply", source=source, path=path, hint=f"At most {MAX_DEPTH} levels.")
    if isinstance(node, float) and not math.isfinite(node):
        raise ConfigError("the number is not finite", source=source, path=path)
    if isinstance(node, dict):
        for key, value in node.items():
            _check(value, source, f"{path}.{key}", depth + 1)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            if isinstance(value, (dict, list, float)):
                _check(value, source, f"{path}[{index}]", depth + 1)


def read_file(file: Path) -> bytes:
    """Return the first MAX_BYTES + 1 bytes of `file`; ConfigError if it cannot be read. A pipe would wait for ever."""
    try:
        if file.exists() and not file.is_file() and not file.is_dir():
            raise ConfigError("is a pipe or a device, not a file", source=str(file), hint="Write it to a file first.")
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", source=str(file)) from None


def read_strict(file: Path) -> Any:
    """Return the strict JSON document in `file`; ConfigError if it cannot be read."""
    return parse_strict(read_file(file), source=str(file))


def convert(document: Any, kind: type[T], *, source: str = "") -> T:
    """Return `document` (plain JSON values) as a Struct of type `kind`; strict: a bool is no int.

    Raises ConfigError with file and JSON path.
    """
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        message, path = _split(str(error))
        raise ConfigError(message, source=source, path=path) from None


def _split(text: str) -> tuple[str, str]:
    """Return message and JSON path of what msgspec says; a fault of the whole document stands at `$`.

    A fault of a mapping's key ends in "at `key` in `$.name`"; the message itself may quote anything.
    """
    for mark in (" - at `key` in `", " - at `"):
        message, found, path = text.rpartition(mark)
        if found and path.startswith("$"):
            return message, path.removesuffix("`")
    return text, "$"


def decode_json(data: bytes, kind: type[T], *, source: str = "") -> T:
    """Return bytes that a program wrote as a Struct of type `kind`; ConfigError when malformed."""
    return convert(parse_strict(data, source=source), kind, source=source)


def evolve(record: T, /, **changes: Any) -> T:
    """Return a copy of a frozen Struct with some fields changed."""
    return msgspec.structs.replace(record, **changes)  # type: ignore[type-var]


def plain(value: Any) -> Any:
    """Return a Struct (or any nesting of Structs) as plain JSON values."""
    return msgspec.to_builtins(value, enc_hook=_plain_text)


def _plain_text(value: Any) -> str:
    """Return a subclass of str (`torch.__version__` is one) as text; nothing else has a JSON form of its own."""
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def canonical_json(value: Any) -> bytes:
    """Return the RFC 8785 form of `value`: UTF-8, sorted keys, shortest numbers."""
    return rfc8785.dumps(plain(value))


def pretty_json(value: Any, *, lone_surrogates: bool = False) -> bytes:
    """Return readable JSON with sorted keys and a final newline; refuses NaN and Infinity.

    lone_surrogates: write one, of a file name that is no UTF-8, as its escape; else it raises UnicodeEncodeError.
    """
    text = json.dumps(plain(value), indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
    return text.encode(errors="backslashreplace" if lone_surrogates else "strict")


def digest(value: Any) -> str:
    """Return the SHA-256 (64 hex digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a Struct type."""
    return msgspec.json.schema(kind)

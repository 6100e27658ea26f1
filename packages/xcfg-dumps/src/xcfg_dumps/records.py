"""JSON records of a dump: one object per line, or one document, parsed strictly and a line at a time.

The only module of this package that calls json. NaN and Infinity, which Python writes and JSON lacks, are read
as such: whether a score may be missing is decided by the mask, with the sample's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xcfg.errors import ArtifactError

LONGEST = 1 << 28
"""Bytes of one record or document. A sample of a million tokens with eight columns stays below."""
PEEK = 1 << 22
"""Bytes that detection looks at."""


def parse(data: bytes, where: str) -> Any:
    """Return one JSON value. Raises ArtifactError: not JSON, not UTF-8, nested too deeply, a key twice."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            keys = [key for key, _ in items]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ArtifactError(f"{where}: the key {twice!r:.80} stands twice in one object", hint="Keep one of them.")
        return found

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=pairs)
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{where} is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ArtifactError(
            f"{where} is not JSON: {error.msg} at column {error.colno}",
            hint="Truncated? A writer that was stopped leaves half a record; take the line out.",
        ) from None
    except RecursionError:
        raise ArtifactError(f"{where} is nested too deeply") from None
    except ValueError as error:  # an integer with more digits than Python converts
        raise ArtifactError(f"{where} is not JSON: {error}") from None


def lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, object) for each line of a JSONL file. Raises ArtifactError, naming the line."""
    try:
        with path.open("rb") as stream:
            number = 0
            while data := stream.readline(LONGEST + 1):
                number += 1
                where = f"{path.name} line {number}"
                if len(data) > LONGEST:
                    raise ArtifactError(f"{where} is longer than {LONGEST} bytes")
                document = parse(data, where)
                if not isinstance(document, dict):
                    raise ArtifactError(f"{where} is no JSON object", hint="One record per line.")
                yield where, document
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read: {error.strerror}") from None


def documents(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, object) for a JSONL file, one JSON object, or one JSON list of objects."""
    if first(path, LONGEST) is not None:
        yield from lines(path)
        return
    try:
        with path.open("rb") as stream:
            data = stream.read(LONGEST + 1)
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    if len(data) > LONGEST:
        raise ArtifactError(f"{path.name} has more than {LONGEST} bytes", hint="Write one answer per line (JSONL).")
    whole = parse(data, path.name)
    for number, item in enumerate(whole if isinstance(whole, list) else [whole]):
        where = f"{path.name}[{number}]" if isinstance(whole, list) else path.name
        if not isinstance(item, dict):
            raise ArtifactError(f"{where} is no JSON object")
        yield where, item


def first(path: Path, limit: int = PEEK) -> dict[str, Any] | None:
    """Return the object on the first line, or None when there is none (of at most `limit` bytes)."""
    try:
        with path.open("rb") as stream:
            data = stream.readline(limit + 1)
        if len(data) > limit or data[:1] != b"{":
            return None
        document = parse(data, path.name)
    except (OSError, ArtifactError):
        return None
    return document if isinstance(document, dict) else None


def keys(path: Path) -> frozenset[str]:
    """Return the keys of the first record: of the first line, else of the document or its first element.

    Empty when the file holds no JSON, or its first record does not fit into what detection reads.
    """
    found = first(path)
    if found is not None:
        return frozenset(found)
    try:
        with path.open("rb") as stream:
            data = stream.read(PEEK + 1)
        if len(data) > PEEK or data.lstrip()[:1] not in (b"{", b"["):
            return frozenset()
        whole = parse(data, path.name)
    except (OSError, ArtifactError):
        return frozenset()
    item = whole[0] if isinstance(whole, list) and whole else whole
    return frozenset(item) if isinstance(item, dict) else frozenset()

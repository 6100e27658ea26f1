"""Canonical JSONL: one object per token and line, read a bounded number of lines at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from xcfg.dumps.columns import (
    INTEGER,
    NUMBER,
    OPTIONAL,
    REQUIRED,
    Batch,
    check_batch,
    is_canonical,
    refuse_missing,
)
from xcfg.errors import ArtifactError, ConfigError
from xcfg.schema.codec import parse_row, parse_strict

ROWS = 1 << 14
LONGEST = 1 << 16
"""Bytes of one line: a row is a handful of scalars."""
KNOWN = frozenset((*REQUIRED, *OPTIONAL))


class JsonlReader:
    """Reads canonical JSONL. Unknown columns are ignored; a known one stands in every row or in none."""

    def detect(self, path: Path) -> str:
        """Return why the file is canonical JSONL: its first line has the keys and a score."""
        try:
            with path.open("rb") as stream:
                row = _row(_line(stream, str(path), 1), str(path), 1)
        except (OSError, ArtifactError):
            return ""
        return "its first line has the canonical columns" if row and is_canonical(row) else ""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches of at most 16,384 rows; raises ArtifactError, naming the line."""
        with path.open("rb") as stream:
            first = 1
            columns: tuple[str, ...] = ()
            while rows := _rows(stream, str(path), first):
                columns = columns or _columns(rows[0], str(path))
                batch = _batch(rows, columns, str(path), first)
                check_batch(batch, f"{path} from line {first}")
                yield batch
                first += len(rows)
        if first == 1:
            raise ArtifactError(f"{str(path)!r} is empty", hint="A dump has one JSON object per token.")


def _rows(stream: IO[bytes], where: str, first: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while len(rows) < ROWS:
        number = first + len(rows)
        line = _line(stream, where, number)
        if not line:
            break
        row = _row(line, where, number)
        if row is None:
            raise ArtifactError(f"{where} line {number} is no JSON object", hint="One object per token and line.")
        rows.append(row)
    return rows


def _line(stream: IO[bytes], where: str, number: int) -> bytes:
    line = stream.readline(LONGEST + 1)
    if len(line) > LONGEST:
        raise ArtifactError(
            f"{where} line {number} is longer than {LONGEST} bytes",
            hint="The canonical form has one row per token; a file with one row per sample needs xcfg-dumps.",
        )
    return line


def _row(line: bytes, where: str, number: int) -> dict[str, Any] | None:
    row = parse_row(line)
    if row is not None:
        return row
    try:
        document = parse_strict(line, source=f"{where} line {number}")
    except ConfigError as error:
        raise ArtifactError(error.message, hint="Write null for a value that is absent.") from None
    return document if isinstance(document, dict) else None


def _columns(row: dict[str, Any], where: str) -> tuple[str, ...]:
    refuse_missing(set(row), f"{where} line 1")
    return tuple(name for name in row if name in KNOWN)


def _batch(rows: list[dict[str, Any]], columns: tuple[str, ...], where: str, first: int) -> Batch:
    wanted = set(columns)
    for number, row in enumerate(rows, first):
        if row.keys() & KNOWN != wanted:
            odd = ", ".join(map(repr, sorted(row.keys() & KNOWN ^ wanted)))
            raise ArtifactError(
                f"{where} line {number} has other columns than line 1: {odd}",
                hint="Write null for an absent score.",
            )
    return {name: _column(name, [row[name] for row in rows], where, first) for name in columns}


def _column(name: str, values: list[Any], where: str, first: int) -> NDArray[Any]:
    if not _TYPES[name].issuperset(map(type, values)):
        _refuse(name, values, lambda value: type(value) in _TYPES[name], where, first)
    if name == "active":
        return np.array(values, dtype=np.bool_)
    if name in INTEGER or (name == "sample_id" and int in set(map(type, values)) and str not in set(map(type, values))):
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            _refuse(name, values, lambda value: abs(value) < 2**63, where, first)
    if name in NUMBER:
        if int in set(map(type, values)):
            _refuse(name, values, lambda value: type(value) is not int or abs(value) < 2**53, where, first)
        return np.array(values, dtype=np.float64)  # null is NaN
    if name == "sample_id":
        _refuse(name, values, lambda value: value != "", where, first)
    return np.array(values, dtype=object)


_TYPES: dict[str, frozenset[type]] = {
    "active": frozenset((bool,)),
    "sample_id": frozenset((str, int)),
    "source": frozenset((str, int, bool, type(None))),
    **{name: frozenset((int,)) for name in INTEGER},
    **{name: frozenset((float, int, type(None))) for name in NUMBER},
}


def _refuse(name: str, values: list[Any], good: Callable[[Any], bool], where: str, first: int) -> None:
    """Raise ArtifactError for the first value that is not `good`, with its line; return when all are."""
    for number, value in enumerate(values, first):
        if not good(value):
            raise ArtifactError(
                f"{where} line {number}: {name} is {_shown(value)}",
                hint=f"{name}: {({**REQUIRED, **OPTIONAL})[name]}.",
            )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"

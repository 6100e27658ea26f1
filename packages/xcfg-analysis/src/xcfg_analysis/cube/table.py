"""A cube as a flat table with one line per row, written as JSON, CSV or Parquet, or printed."""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xcfg.errors import MissingDependencyError, UsageError
from xcfg.schema import codec
from xcfg.schema.cube import Pivot
from xcfg.schema.result import GroupStat

from xcfg_analysis.cube.query import EDGE_FIGURES
from xcfg_analysis.cube.rows import Cube, Row

RATIOS = ("r_training", "r_rollout", "r_gap", "bias")
RANK_FIGURES = ("active_tokens", "mismatches", "mean_abs", "max_abs", "bias", "rms")


def flat(cube: Cube) -> list[dict[str, Any]]:
    """Return one flat object per row, all with the same keys; a value that a row does not have is None.

    requested.AXIS, actual.AXIS, applied.AXIS, exercised.AXIS; EDGE.FIGURE; EDGE.rank.N.FIGURE; assessment.RATIO with
    its interval; ARM.digest, ARM.processes; seconds.build and seconds.score.
    """
    rows = [_flat(row) for row in cube.rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _flat(row: Row) -> dict[str, Any]:
    line: dict[str, Any] = {
        name: getattr(row, name)
        for name in ("case_id", "attempt", "label", "role", "index", "status", "reason", "verdict_arm", "threshold")
    }
    line["assessment"] = row.assessment.assessment if row.assessment is not None else None
    line["delta"] = _text(row.delta)
    for side in ("rollout", "training"):
        line[f"runtime.{side}"] = row.runtimes.get(side)
        line[f"device.{side}"] = row.devices.get(side)
    for key, cell in row.axes.items():
        line |= {
            f"requested.{key}": cell.requested,
            f"actual.{key}": cell.actual,
            f"applied.{key}": cell.status,
            f"exercised.{key}": cell.exercised,
        }
    for name, edge in row.edges.items():
        line |= {f"{name}.{figure}": getattr(edge, figure) for figure in EDGE_FIGURES}
        for group in edge.by_rank:
            line |= _ranked(name, group)
    for ratio in RATIOS:
        interval = getattr(row.assessment, ratio) if row.assessment is not None else None
        for part in ("value", "low", "high"):
            line[f"assessment.{ratio}.{part}"] = getattr(interval, part) if interval is not None else None
    for arm, score in row.arms.items():
        line |= {f"{arm}.digest": score.digest, f"{arm}.processes": _text(score.processes)}
    line |= {f"seconds.{name}": value for name, value in row.seconds.items()}
    line |= {"coupled": _text(row.coupled), "outside": _text(row.outside)}
    return line


def _ranked(edge: str, group: GroupStat) -> dict[str, Any]:
    return {f"{edge}.rank.{group.group}.{figure}": getattr(group, figure) for figure in RANK_FIGURES}


def _text(value: Any) -> str:
    return codec.canonical_json(value).decode()


def write(cube: Cube, file: Path) -> None:
    """Write the cube to `file`: `.json` the cube itself, `.csv` and `.parquet` the flat table.

    Raises UsageError for another suffix or a place that cannot be written, MissingDependencyError without pyarrow.
    """
    makers: dict[str, Callable[[Cube], bytes]] = {".json": codec.pretty_json, ".csv": as_csv, ".parquet": as_parquet}
    if file.suffix not in makers:
        raise UsageError(f"{str(file)!r} has no suffix that is known", hint=f"Use one of {', '.join(makers)}.")
    data = makers[file.suffix](cube)
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"{str(file)!r} cannot be written: {error.strerror}") from None


def as_csv(cube: Cube) -> bytes:
    """Return the flat table as CSV (RFC 4180); None is empty, a number has every digit that it needs."""
    rows = flat(cube)
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(rows[0] if rows else ())
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return stream.getvalue().encode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def as_parquet(cube: Cube) -> bytes:
    """Return the flat table as Parquet; a column whose values have several types is JSON text. Needs pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError(
            "Parquet needs pyarrow", hint="pip install 'xcfg-analysis[parquet]', or write .csv or .json."
        ) from None
    rows = flat(cube)
    columns = {name: _column([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    facts = {"schema_version": cube.schema_version, "experiment_id": cube.experiment_id, **cube.contract}
    table = pyarrow.table(columns).replace_schema_metadata({f"xcfg.{name}": text for name, text in facts.items()})
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _column(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else json.dumps(value) for value in values]


def text(cube: Cube) -> str:
    """Return the cube for a terminal: one line per row."""
    head = ("case", "status", "assessment", "over / tokens", "rms", "mean d", "seconds")
    lines = [head, *(_line(row) for row in cube.rows)]
    pair = " / ".join(cube.runtimes.get(side, "?") for side in ("rollout", "training"))
    end = [f"{cube.experiment_id}: {len(cube.rows)} rows, rollout / training {pair}"]
    if cube.missing:
        end.append(f"without a valid attempt: {', '.join(cube.missing)}")
    end += [f"a newer attempt is altered or gone and does not count: {text}" for text in cube.rejected]
    if cube.others:
        end.append(f"also run by {', '.join(cube.others)}: --runtimes shows them")
    return aligned(lines) + "\n\n" + "\n".join(end)


def _line(row: Row) -> tuple[str, ...]:
    edge = row.edges.get(row.verdict_edge)
    assessed = row.assessment.assessment if row.assessment is not None else "-"
    spent = f"{sum(row.seconds.values()):.1f}"
    if edge is None:
        return (row.label, row.status, assessed, "-", "-", "-", spent)
    over = f"{edge.mismatches}/{edge.active_tokens}"
    return (row.label, row.status, assessed, over, _number(edge.rms), _number(edge.bias), spent)


def pivot_text(found: Pivot) -> str:
    """Return a pivot for a terminal."""
    head = (f"{found.rows} \\ {found.columns}", *(_cell(value) for value in found.column_values))
    lines = [
        (_cell(value), *(_number(item) for item in cells))
        for value, cells in zip(found.row_values, found.cells, strict=True)
    ]
    return f"{found.figure}\n" + aligned([head, *lines])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of equal length as an aligned table; control characters become spaces."""
    cells = [["".join(char if char.isprintable() else " " for char in cell) for cell in line] for line in lines]
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

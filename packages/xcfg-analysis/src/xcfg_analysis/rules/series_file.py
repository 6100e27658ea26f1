"""Read downstream series from a JSONL or CSV file: one row per step, perhaps per case and seed."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema.codec import parse_strict, read_file

from xcfg_analysis.rules.downstream import FEWEST, REFERENCE, WORSE, Series, Trajectory

STEP, CASE, SEED = "step", "case", "seed"
SHAPE = f"A row has {STEP!r}, any of {', '.join(WORSE)}, and perhaps {CASE!r} (A0 ... A5, a label) and {SEED!r}."
LAST_STEP = 2**53
"""Steps up to which a float holds every integer."""
LARGEST = 1e150
"""Size up to which a square is finite, and a sum of many."""
Cells = dict[str, dict[str, dict[int, list[float]]]]
"""Case -> metric -> step -> one value per seed."""


def read_series(path: Path) -> Series:
    """Return the series in a `.jsonl` or `.csv` file; seeds are averaged per step. Raises ConfigError with the line."""
    cells: Cells = {}
    seen: set[tuple[str, str, int]] = set()
    for line, row in _rows(path):
        source = f"{path}, line {line}"
        case, seed = (_name(row.get(name), name, source) for name in (CASE, SEED))
        step = _number(row.get(STEP), STEP, source)
        if step != int(step) or abs(step) > LAST_STEP:
            raise ConfigError(f"the step {step!r} is no integer up to 2^53", source=source, hint=SHAPE)
        if (case, seed, int(step)) in seen:
            raise ConfigError(
                f"step {int(step)} of case {case!r}, seed {seed!r} stands twice", source=source, hint=SHAPE
            )
        seen.add((case, seed, int(step)))
        for name, value in row.items():
            if name in (STEP, CASE, SEED) or value in (None, ""):
                continue
            if name not in WORSE:
                raise ConfigError(
                    f"unknown column {name!r}", source=source, hint=f"{did_you_mean(name, WORSE)} {SHAPE}"
                )
            by_step = cells.setdefault(case, {}).setdefault(name, {})
            by_step.setdefault(int(step), []).append(_number(value, name, source))
    if not cells:
        raise ConfigError("the file holds no value of any series", source=str(path), hint=SHAPE)
    return Series({case: _trajectory(metrics) for case, metrics in cells.items()}, tuple(_remarks(cells)))


def _trajectory(metrics: Mapping[str, Mapping[int, list[float]]]) -> Trajectory:
    found = {}
    for name, by_step in metrics.items():
        steps = np.array(sorted(by_step), dtype=np.int64)
        found[name] = steps, np.array([math.fsum(by_step[step]) / len(by_step[step]) for step in steps.tolist()])
    return Trajectory(found)


def _remarks(cells: Cells) -> Iterator[str]:
    if len(cells) > 1 and REFERENCE not in cells:
        yield f"severity is not ranked: no case of the series is called {REFERENCE!r}, the reference"
    for case, metrics in sorted(cells.items()):
        for name, by_step in sorted(metrics.items()):
            if len(by_step) < FEWEST:
                yield f"{name} of case {case!r} has {len(by_step)} steps, fewer than {FEWEST}: no change is looked for"


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    text = read_file(path)
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                row = parse_strict(line, source=f"{path}, line {number}")
                if not isinstance(row, dict):
                    raise ConfigError("the line is no JSON object", source=f"{path}, line {number}", hint=SHAPE)
                yield number, row
    elif path.suffix == ".csv":
        try:
            reader = csv.DictReader(text.decode("utf-8-sig").splitlines(), strict=True)
            head = list(reader.fieldnames or ())
            if twice := [name for name in head if head.count(name) > 1]:
                raise ConfigError(f"the column {twice[0]!r} stands twice", source=str(path), hint="Keep one of them.")
            for row in reader:
                if None in row or None in row.values():
                    raise ConfigError("more or fewer cells than the head", source=f"{path}, line {reader.line_num}")
                yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"not CSV: {error}", source=str(path)) from None
    else:
        raise ConfigError(
            f"{path.suffix or 'no suffix'!r} is no kind of series file", source=str(path), hint="Give .jsonl or .csv."
        )


def _number(value: Any, name: str, source: str) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ConfigError(f"{name} is {value!r}, no number", source=source, hint=SHAPE) from None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"{name} is {value!r}, no finite number", source=source, hint=SHAPE)
    if abs(value) > LARGEST:
        raise ConfigError(
            f"{name} is {value!r}, larger than {LARGEST:g}: its square is not finite", source=source, hint=SHAPE
        )
    return float(value)


def _name(value: Any, name: str, source: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
        raise ConfigError(f"{name} is {value!r}, neither text nor a number", source=source, hint=SHAPE)
    return "" if value is None else str(value)

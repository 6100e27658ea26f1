"""Modules stay small enough to be read in one go."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400
MAX_MEDIAN = 140
MAX_INIT_LINES = 60
MODULES = sorted((ROOT / "packages").glob("*/src/**/*.py"))


def lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("package", sorted({file.relative_to(ROOT).parts[1] for file in MODULES}))
def test_modules_are_short(package: str) -> None:
    """Failing means that a module does more than one thing: split it where its sentences change subject."""
    own = [file for file in MODULES if file.relative_to(ROOT).parts[1] == package]
    long = {str(file.relative_to(ROOT)): lines(file) for file in own if lines(file) > MAX_LINES}
    assert not long


def test_the_median_is_small(record_property: Callable[[str, object], None]) -> None:
    """Failing means that modules grow as a whole, not one by one."""
    sizes = sorted(lines(file) for file in MODULES if file.name != "__init__.py")
    median = statistics.median(sizes)
    print(f"{len(sizes)} modules, median {median:g} lines, longest {sizes[-1]}")
    record_property("median_lines", median)
    assert median <= MAX_MEDIAN


def test_init_files_hold_no_logic() -> None:
    """Failing means that code hides where nobody looks for it."""
    long = {
        str(file.relative_to(ROOT)): lines(file)
        for file in MODULES
        if file.name == "__init__.py" and lines(file) > MAX_INIT_LINES
    }
    assert not long


def test_product_code_does_not_assert() -> None:
    """Failing means that a check vanishes under `python -O`. The kit is exempt: its asserts are its product."""
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in MODULES
        if "xcfg_testkit" not in file.parts
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert not found

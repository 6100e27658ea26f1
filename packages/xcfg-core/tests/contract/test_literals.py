"""No judgement limit stands outside the contract's data file: a second copy could be loosened unseen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from xcfg.contract import load_contract

PACKAGES = Path(__file__).parents[3]
SIGNATURES = "xcfg-analysis/src/xcfg_analysis/signatures"
ALLOWED: dict[tuple[str, float], str] = {
    ("xcfg-analysis/src/xcfg_analysis/recognise.py", 1.5): "margin over what clean drift explains by chance",
    (f"{SIGNATURES}/fills.py", 1e-5): "probability that a value is far off by chance as often as seen",
    (f"{SIGNATURES}/lag.py", 0.25): "share of the squared difference that a shift has to leave",
    (f"{SIGNATURES}/padding.py", 0.25): "distance of a fitted factor from 1",
    (f"{SIGNATURES}/tail.py", 1.5): "drift of the tail over its natural profile",
    (f"{SIGNATURES}/truncation.py", 0.25): "distance of a fitted factor from 1",
}
"""(file below packages/, value) -> why the number there is no judgement limit."""


def forbidden() -> set[float]:
    """The thresholds of the verdict and the limits of the assessment, as the data file has them."""
    contract = load_contract()
    limits = {entry.atol for entry in contract.accuracy.default["logprob"].values()}
    return limits | {contract.assessment.ratio, contract.assessment.bias}


def literals(source: str) -> Iterator[tuple[int, float]]:
    """Every float literal of a module that is not a duration."""
    tree = ast.parse(source)
    durations = {id(node) for root in ast.walk(tree) for node in _duration(root)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is float and id(node) not in durations:
            yield node.lineno, node.value


def _duration(node: ast.AST) -> Iterator[ast.AST]:
    """What `sleep(...)`, `timeout=...` and `X_SECONDS = ...` hold: seconds, never nats."""
    names: list[str] = []
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "sleep":
        yield from node.args
    elif isinstance(node, ast.keyword):
        names = [node.arg or ""]
    elif isinstance(node, ast.Assign):
        names = [ast.unparse(target) for target in node.targets]
    elif isinstance(node, ast.AnnAssign):
        names = [ast.unparse(node.target)]
    if names and all(re.search(r"(seconds|timeout|grace|delay)$", name, re.IGNORECASE) for name in names):
        yield from (child for child in ast.walk(node) if isinstance(child, ast.Constant))


def test_every_exception_is_still_one() -> None:
    for (file, value), why in ALLOWED.items():
        assert why
        assert value in {found for _, found in literals((PACKAGES / file).read_text(encoding="utf-8"))}, file


def test_the_lint_knows_the_five_limits() -> None:
    assert forbidden() == {1e-5, 5e-3, 6e-2, 1.5, 0.25}


@pytest.mark.parametrize("text", ["6e-2", "0.06", "5e-3", "0.005", "1e-5", "0.00001", "1.50", ".25", "-0.25"])
def test_every_spelling_is_found(text: str) -> None:
    assert {value for _, value in literals(f"LIMIT = {text}\n")} & forbidden()


@pytest.mark.parametrize(
    ("text", "count"),
    [("time.sleep(0.25)", 0), ("POLL_SECONDS = 0.25", 0), ("f(timeout=1.5)", 0), ("f(limit=1.5)", 1), ("f(0.25)", 1)],
)
def test_only_durations_are_let_through(text: str, count: int) -> None:
    assert len(list(literals(text))) == count


def test_no_source_file_repeats_a_limit() -> None:
    files = sorted(PACKAGES.glob("*/src/**/*.py"))
    assert len(files) > 30, "the lint looked at nothing"
    limits = forbidden()
    found = [
        f"{file.relative_to(PACKAGES)}:{line}: {value!r}"
        for file in files
        for line, value in literals(file.read_text(encoding="utf-8"))
        if value in limits and (str(file.relative_to(PACKAGES)), value) not in ALLOWED
    ]
    assert not found, "judgement limits belong into the contract file: " + "; ".join(found)


def test_every_exception_is_used_and_explained() -> None:
    for (name, value), reason in ALLOWED.items():
        assert len(reason) > 20
        assert value in {number for _, number in literals((PACKAGES / name).read_text(encoding="utf-8"))}

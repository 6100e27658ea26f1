"""The tutorial is run as it is printed: its files are written, its commands executed, its output compared.

In docs/tutorial/*.md a comment before a fenced block says what the block is:

    <!-- file: NAME -->            the block is the content of NAME; SHA256 stands for the digest printed last
    <!-- executed -->              a `console` block; each `$ ` line is run and must end with 0
    <!-- executed, exit N -->      ... and the last command must end with N

The lines below a command must appear in its output in this order, other lines may stand between; `...` within a line
stands for any text.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
BLOCK = re.compile(r"^<!-- (?P<mark>[^>]*) -->\n```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SHA256 = re.compile(r"\b[0-9a-f]{64}\b")


@dataclass(frozen=True)
class Block:
    """One marked block of a page."""

    mark: str
    kind: str
    text: str
    line: int

    @property
    def exit_code(self) -> int:
        found = re.fullmatch(r"executed(?:, exit (\d+))?", self.mark)
        if not found:
            pytest.fail(f"line {self.line}: unknown mark {self.mark!r}")
        return int(found[1] or 0)

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """Each command with the lines that are printed below it."""
        result: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                result.append((line[2:], []))
            elif line.strip():
                result[-1][1].append(line)
        return result


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["mark"], found["kind"], found["text"], text.count("\n", 0, found.start()) + 1)
        for found in BLOCK.finditer(text)
    ]


def missing(expected: list[str], output: str) -> str | None:
    """Return the first expected line that does not follow the ones before it, or None."""
    lines = iter(output.splitlines())
    for want in expected:
        pattern = ".*".join(re.escape(part.strip()) for part in want.split("..."))
        if not any(re.search(pattern, line) for line in lines):
            return want
    return None


def execute(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tutorial_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """Failing means that a reader who follows the page sees something else than it shows."""
    digest = "SHA256"
    executed = 0
    for block in blocks(page):
        if block.mark.startswith("file: "):
            (tmp_path / block.mark.removeprefix("file: ")).write_text(block.text.replace("SHA256", digest))
            continue
        for index, (command, expected) in enumerate(block.commands):
            last = index == len(block.commands) - 1
            done = execute(command, tmp_path)
            told = f"{page.name}:{block.line}: $ {command}\n{done.stdout}\n{done.stderr}"
            assert done.returncode == (block.exit_code if last else 0), told
            unseen = missing(expected, done.stdout)
            assert unseen is None, f"the output has no line {unseen!r} where it is expected\n{told}"
            digest = next(iter(SHA256.findall(done.stdout)[-1:]), digest)
            executed += 1
    assert executed, f"{page.name} has no executed block"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_console_block_is_marked(page: Path) -> None:
    """Failing means that a command in a tutorial is shown and never run."""
    text = page.read_text(encoding="utf-8")
    assert text.count("```console") == sum(block.kind == "console" for block in blocks(page)) > 0


def test_the_comparison_of_output_can_fail() -> None:
    """Failing means that the test above would accept any output."""
    output = "first-run: 2 cases\n  case-1  baseline\n  case-2  x=1\n"
    assert missing(["first-run: 2 cases", "case-... x=1"], output) is None
    assert missing(["case-... x=1", "case-... baseline"], output) == "case-... baseline"
    assert missing(["first-run: 3 cases"], output) == "first-run: 3 cases"
    assert missing(["a...b"], "a+b") is None

"""The tutorial is run as it is printed: its files are written, its commands executed, its output compared.

In docs/tutorial/*.md a comment before a fenced block says what the block is:

    <!-- file: NAME -->            the block is the content of NAME; SHA256 stands for the digest printed last
    <!-- shown: PATH -->           the block is the content of this file of the repository
    <!-- executed -->              a `console` block; each `$ ` line is run and must end with 0
    <!-- executed, exit N -->      ... and the last command must end with N

The lines below a command must appear in its output in this order, other lines may stand between; `...` within a line
stands for any text. `examples/` is there as in the repository.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from junitparser import JUnitXml
from pyarrow.parquet import read_table

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
BLOCK = re.compile(r"^<!-- (?P<mark>[^>]*) -->\n```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
MARKS = {"real-engines": pytest.mark.engine}
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
        "COLUMNS": "120",  # the pages show lines of this width
    }
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def suites_of(path: Path) -> dict[str, set[str]]:
    """Return suite -> names of its tests, by a reader of JUnit files that is not ours."""
    return {suite.name: {case.name for case in suite} for suite in JUnitXml.fromfile(str(path))}


FUSED, NATIVE = "training.bias_activation_fusion=false", "rollout.custom_ops=all"
ROLLOUT, TRAINING = "rollout.tensor_parallel_size=1", "training.tensor_parallel_size=1"
CACHE = "rollout.kv_cache_dtype=auto"
SUITES = {
    "production": {"baseline"},
    "arithmetic": {NATIVE, FUSED, f"{NATIVE}, {FUSED}"},
    "reduction": {ROLLOUT, TRAINING, f"{ROLLOUT}, {TRAINING}"},
}


def slices_go_the_same_way(folder: Path) -> None:
    """Hold what the page of real engines left: a suite per slice, each slice alone, the minimal set, the GPU slice."""
    whole = suites_of(folder / "junit.xml")
    assert {name: whole[name] for name in SUITES} == SUITES
    assert whole["representation"] == {CACHE, "training.compute_dtype=float32"}
    assert suites_of(folder / "reduction.xml")["reduction"] == SUITES["reduction"]
    found = json.loads(execute("xcfg minimize runs/s2-drift --objective explained --json", folder).stdout)
    assert "rollout.kv_cache_dtype" not in found["left_enabled"], "what has to change may not stay different"
    run = "xcfg run examples/s2/drift.json --rollout vllm --training megatron --slice {0} --json > {0}.json"
    for name in ("production", "arithmetic"):  # the page does so with the third
        gate = f"xcfg gate runs/s2-drift --after {name}.json --junit {name}.xml"
        done = execute(f"{run.format(name)}; {gate}", folder)
        assert done.returncode == 1, done.stdout + done.stderr
        assert suites_of(folder / f"{name}.xml")[name] == SUITES[name]
        assert all(case["resumed"] for case in json.loads((folder / f"{name}.json").read_text())["cases"])
    gpu = folder / "gpu"
    gpu.mkdir()
    (gpu / "runs").symlink_to(folder / "runs")
    here = f"XCFG_DEVICES=cpu XCFG_GPU_ENV={sys.prefix}"
    done = execute(f"{here} {ROOT}/.ci/gpu slice {gpu}", folder)
    assert done.returncode == 1 and "numerical: " in done.stderr, done.stdout + done.stderr
    assert suites_of(gpu / "junit.xml")["gpu"] == {CACHE, FUSED, *SUITES["reduction"]}
    assert {row["label"] for row in read_table(gpu / "cube.parquet").to_pylist()} == {
        "baseline",
        CACHE,
        FUSED,
        *SUITES["reduction"],
    }


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem, marks=MARKS.get(page.stem, ())) for page in PAGES])
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorial_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """Failing means that a reader who follows the page sees something else than it shows."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    digest = "SHA256"
    executed = 0
    for block in blocks(page):
        if block.mark.startswith("shown: "):
            assert block.text == (ROOT / block.mark.removeprefix("shown: ")).read_text(), f"{page.name}:{block.line}"
            continue
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
    if page.stem in AFTERWARDS:
        AFTERWARDS[page.stem](tmp_path)


AFTERWARDS = {"real-engines": slices_go_the_same_way}


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

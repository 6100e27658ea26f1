"""examples/external-trainer through `xcfg run`: a trainer that is no plugin is scored, judged, resumed and refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xcfg

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = Path("examples") / "external-trainer"
ROLLOUT = Path("examples") / "quickstart" / "tiny-rollout"
EDGE = "training_vs_rollout"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Place:
    """A folder like the root of the repository: the example and the rollout at their relative paths, and runs."""

    root: Path

    @property
    def experiment(self) -> Path:
        return self.root / EXAMPLE / "experiment.json"

    def change(self, **fields: Any) -> None:
        self.experiment.write_text(json.dumps({**json.loads(self.experiment.read_text()), **fields}))

    def edit(self, name: str, old: str, new: str) -> None:
        file = self.root / EXAMPLE / name
        text = file.read_text()
        assert text.count(old) == 1, f"{old!r} is not once in {name}"
        file.write_text(text.replace(old, new))

    def run(self, training: str = "external", runs: str = "runs") -> dict[str, dict[str, Any]]:
        """Run the example as its README says, from the root; return its cases by label."""
        words = ["run", str(EXAMPLE / "experiment.json"), "--training", training, "--output-root", runs, "--json"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, "-P", "-m", "xcfg", *words],
            cwd=self.root,
            env={**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
        assert done.returncode in (0, 1, 3), done.stdout + done.stderr
        return {case["label"]: case for case in json.loads(done.stdout)["cases"]}

    def logprobs(self, runs: str = "runs") -> dict[str, np.ndarray[Any, Any]]:
        """What the training side scored on active tokens, by case."""
        found = {}
        for case in xcfg.iter_cases(self.root / runs / "external-trainer"):
            tokens = case.tokens()
            found[case.label] = tokens[f"{EDGE}__first"][tokens[f"{EDGE}__mask"]]
        return found


def copy(source: Path, root: Path) -> Place:
    shutil.copytree(source / EXAMPLE, root / EXAMPLE, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(source / ROLLOUT, root / ROLLOUT)
    if (source / "runs" / "external-trainer").is_dir() and source != ROOT:
        shutil.copytree(source / "runs", root / "runs")
    return Place(root)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The example as it lies here, run once."""
    place = copy(ROOT, tmp_path_factory.mktemp("external"))
    found = place.run()
    assert {label: case["status"] for label, case in found.items()} == {
        "baseline": "PASS",
        "batch.size@training=2": "PASS",
        "training.attention_backend=sdpa": "PASS",
        "training.compute_dtype=bfloat16": "MISMATCH",
    }
    assert {case["assessment"] for case in found.values()} == {"EXPLAINED_BY_PRECISION"}
    return place


@pytest.fixture
def baseline(scored: Place, tmp_path: Path) -> Place:
    """What is there after that run, copied, with no case but the baseline: only what was edited is scored again."""
    place = copy(scored.root, tmp_path)
    place.change(interventions=[])
    return place


def test_the_numbers_are_those_of_the_embedded_runtime(scored: Place, tmp_path: Path) -> None:
    """Oracle: the runtime torch, which shares no line with the example. Failing means that one of them is wrong."""
    place = copy(ROOT, tmp_path)
    place.change(runtime_options={}, controls={"reference": False})
    torch = place.run(training="torch")
    mine, theirs = scored.logprobs(), place.logprobs()
    assert mine.keys() == theirs.keys() == torch.keys() and len(torch) == 4
    for label, case in torch.items():
        assert np.isfinite(mine[label]).all() and len(mine[label]) == 384
        largest = float(np.abs(mine[label].astype(np.float64) - theirs[label].astype(np.float64)).max())
        same = label in ("baseline", "batch.size@training=2")  # eager float32 in the same batches
        assert largest <= (1e-6 if same else case["threshold"]), label


def test_a_second_run_resumes(scored: Place) -> None:
    """Failing means that something in the scoring key is not the same twice."""
    assert [case["resumed"] for case in scored.run().values()] == [True] * 4


def test_an_edit_scores_again(baseline: Place) -> None:
    """The program by its word in `command`, its neighbour by `sources`. Failing means a score of the old program."""
    assert baseline.run()["baseline"]["resumed"] is True, "nothing was edited yet"
    for name, old in (("score.py", "# () are raw"), ("evidence.py", "# without padding")):
        baseline.edit(name, old, f"{old} indeed")
        assert baseline.run()["baseline"]["resumed"] is False, name


def test_an_unreported_knob_has_no_verdict(baseline: Place) -> None:
    """Failing means that a setting which nobody looked at passes as applied."""
    baseline.edit("evidence.py", "for path in found if path in knobs", 'for path in set(knobs) - {"training.sharding"}')
    found = baseline.run()["baseline"]
    assert found["status"] == "UNOBSERVABLE" and "training.sharding" in found["reason"] and not found["edges"]


def test_other_ids_have_no_numbers(baseline: Place) -> None:
    """Failing means that two sides that scored other tokens are compared."""
    baseline.edit(
        "score.py", "given = ids[row, first : first + length],", "given = ids[row, first : first + length] + 1,"
    )
    found = baseline.run()["baseline"]
    assert found["status"] == "INVALID_IDENTITY" and "token_ids" in found["reason"] and not found["edges"]

"""examples/external-verl and examples/external-slime through `xcfg run`, and what a broken scorer ends as.

verl and slime are not installed in the gate: `tests/stand_ins` holds functions of the same name, place and signature.
XCFG_FRAMEWORKS names folders with the real ones (`pip install --target`), joined by a colon, and then those are called.
Last done with verl 0.9.1 and with slime at commit 624b824, on a CPU without flash-attn.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xcfg

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = os.environ.get("XCFG_FRAMEWORKS", str(ROOT / "tests" / "stand_ins"))
SHARED = Path("examples") / "external-trainer"
TINY = Path("examples") / "quickstart" / "tiny-rollout"
EDGE = "training_vs_rollout"
SLIME_RETURNS = "values.squeeze(-1), chain"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Place:
    """A folder like the root of the repository, with one of the two examples."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.folder = root / "examples" / f"external-{name}"
        for part in (SHARED, self.folder.relative_to(root), TINY):
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        self.change(env={"PYTHONPATH": os.pathsep.join([str(SHARED), FOLDERS])})

    def change(self, env: dict[str, str] | None = None, **fields: Any) -> None:
        file = self.folder / "experiment.json"
        document = {**json.loads(file.read_text()), **fields}
        if env:
            document["runtime_options"]["training"]["env"] = env
        file.write_text(json.dumps(document))

    def edit(self, old: str, new: str) -> None:
        file = self.folder / f"{self.name}_score.py"
        text = file.read_text()
        assert text.count(old) == 1, f"{old!r} is not once in {file.name}"
        file.write_text(text.replace(old, new))

    def xcfg(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "xcfg", *words, "--json"],
            cwd=self.root,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
        assert done.returncode in (0, 1, 3, 4), done.stdout + done.stderr
        return done.stdout

    def run(self, training: str = "external") -> dict[str, dict[str, Any]]:
        file = str(self.folder / "experiment.json")
        out = self.xcfg("run", file, "--rollout", "torch", "--training", training, "--output-root", f"runs-{training}")
        return {case["label"]: case for case in json.loads(out)["cases"]}

    def logprobs(self, training: str) -> np.ndarray[Any, Any]:
        """What the training side of the baseline scored on active tokens, float64."""
        case = next(iter(xcfg.iter_cases(self.root / f"runs-{training}" / f"external-{self.name}")))
        tokens = case.tokens()
        found: np.ndarray[Any, Any] = tokens[f"{EDGE}__first"][tokens[f"{EDGE}__mask"]]
        return found.astype(np.float64)

    def freeze(self, temperature: float) -> None:
        """Sample the tiny model at `temperature`, with log probabilities after it, and score that."""
        (self.root / "prompts.jsonl").write_text('{"token_ids": [5, 6, 7]}\n{"token_ids": [400, 3, 9, 11, 90]}\n')
        words = ("--checkpoint", "builtin:tiny-qwen3-512", "--prompts", "prompts.jsonl", "--output", "warm")
        at = ("--temperature", str(temperature), "--logprobs-mode", "processed_logprobs", "--max-new-tokens", "16")
        frozen = json.loads(self.xcfg("freeze", *words, *at, "--set", "rollout.dtype=float32"))
        self.change(identity={"rollout": {"path": str(self.root / "warm"), "sha256": frozen["sha256"]}})


def alone(root: Path, name: str) -> Place:
    """The baseline alone, in float32, without the reference."""
    made = Place(root, name)
    made.change(interventions=[], controls={"reference": False})
    return made


@pytest.fixture(params=["verl", "slime"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return alone(tmp_path, request.param)


def test_the_function_is_called_on_every_active_token(place: Place) -> None:
    """Oracle: the runtime torch, which shares no line with the examples. Failing means that a number is wrong."""
    found = place.run()["baseline"]
    assert found["status"] == "PASS" and found["edges"][EDGE]["active_tokens"] == 384, found["reason"]
    place.change(runtime_options={})
    place.run("torch")
    mine, theirs = place.logprobs("external"), place.logprobs("torch")
    assert len(mine) == 384 and np.abs(mine - theirs).max() < 5e-6


def test_bfloat16_is_a_mismatch_that_rounding_explains(tmp_path: Path) -> None:
    """verl's result is rounded to bfloat16 too. Failing means that another dtype ran than the one that is reported."""
    place = Place(tmp_path, "verl")
    found = place.run()["training.compute_dtype=bfloat16"]
    assert (found["status"], found["assessment"]) == ("MISMATCH", "EXPLAINED_BY_PRECISION"), found["reason"]


def test_a_temperature_is_applied_and_said(place: Place) -> None:
    """Oracle: the runtime torch divides in float32. Failing means a false mismatch, or a false identity error."""
    place.freeze(0.7)
    found = place.run()["baseline"]
    assert (found["status"], found["reason"]) == ("PASS", ""), found
    reports = [file.read_text() for file in (place.root / "runs-external").rglob("*.json")]
    assert any('"temperature:0.7"' in text and '"training"' in text for text in reports), "the chain is not kept"


def test_an_unsaid_temperature_has_no_numbers(tmp_path: Path) -> None:
    """Failing means that scores of two temperatures are compared, and the gap is called drift."""
    place = alone(tmp_path, "slime")
    place.freeze(0.7)
    place.edit('chain = (f"temperature:{temperature!r}",)', "chain = ()")
    found = place.run()["baseline"]
    assert found["status"] == "INVALID_IDENTITY" and "transforms" in found["reason"] and not found["edges"]


def test_a_temperature_that_is_only_said_is_a_mismatch(tmp_path: Path) -> None:
    """The identity believes what a scorer says of itself; the numbers do not. Failing means a false pass."""
    place = alone(tmp_path, "verl")
    place.freeze(0.7)
    place.edit("logits = logits / ", "logits / ")
    assert place.run()["baseline"]["status"] == "MISMATCH"


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("torch.cat([values.squeeze(-1)[:-1], values[-1] * torch.nan]), chain", "INVALID_ARTIFACT", "not finite"),
        ("values.squeeze(-1)[:-1], chain", "WORKER_FAILED", "shape"),
        ("values.squeeze(-1) * torch.inf, chain", "INVALID_ARTIFACT", "not finite"),
    ],
    ids=["a token left out", "a token too few", "infinite"],
)
def test_a_broken_scorer_has_no_verdict(tmp_path: Path, fault: str, status: str, words: str) -> None:
    """Failing means that a scorer which scores less than was asked passes on the tokens that it likes."""
    place = alone(tmp_path, "slime")
    place.edit(SLIME_RETURNS, fault)
    place.edit("import xcfg\n", "import torch\nimport xcfg\n")
    found = place.run()["baseline"]
    assert found["status"] == status and words in found["reason"], found


@pytest.mark.skipif("XCFG_FRAMEWORKS" not in os.environ, reason="the real packages are not here: XCFG_FRAMEWORKS")
@pytest.mark.parametrize("module", ["verl/utils/torch_functional.py", "slime/utils/ppo_utils.py"])
def test_the_stand_in_has_the_real_signature(module: str) -> None:
    """Failing means that verl or slime changed the function, and the example calls one that is gone."""
    names = {"logprobs_from_logits", "calculate_log_probs_and_entropy"}

    def signature(folder: Path) -> tuple[list[str], list[str]]:
        tree = ast.parse((folder / module).read_text())
        found = next(item.args for item in tree.body if isinstance(item, ast.FunctionDef) and item.name in names)
        return [item.arg for item in found.args], [ast.unparse(item) for item in found.defaults]

    real = next(Path(item) for item in FOLDERS.split(os.pathsep) if (Path(item) / module).is_file())
    assert signature(real) == signature(ROOT / "tests" / "stand_ins")

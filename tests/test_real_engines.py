"""Real vLLM against real Megatron-core on a CPU, two ranks each, from the example file to sealed evidence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


RUN = ("run", "examples/s2/vllm_megatron.json", "--rollout", "vllm", "--training", "megatron", "--json")


def xcfg(*words):
    """Run `xcfg WORDS` in the repository."""
    command = [sys.executable, "-m", "xcfg", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def s2(tmp_path_factory):
    """The finished run of the example: (summary, output root)."""
    root = tmp_path_factory.mktemp("s2")
    done = xcfg(*RUN, "--output-root", str(root))
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout), root


@pytest.mark.engine
@pytest.mark.slow
def test_every_case_has_a_verdict_and_a_precision_budget(s2):
    """Failing means that one of the two engines was not read back, or scored something else."""
    cases = s2[0]["cases"]
    assert len(cases) == 3
    for case in cases:
        assert case["status"] in ("PASS", "MISMATCH"), case["reason"]
        assert case["assessment"] == "EXPLAINED_BY_PRECISION", case
        edge = case["edges"]["training_vs_rollout"]
        assert edge["active_tokens"] == 384 and 0 < edge["mean_abs"] < 0.05


@pytest.mark.engine
def test_every_rank_of_both_sides_reports(s2):
    """Failing means that a rank is taken on trust."""
    roles = set()
    for file in s2[1].glob("*/scores/*/ranks.json"):
        records = json.loads(file.read_text())["records"]
        if records and records[0]["parallelism"] == "tensor":
            roles.add(tuple((record["rank"], record["role"], record["coordinates"]["tp"]) for record in records))
    training, rollout = ((0, "owner", 0), (1, "replica", 1)), ((0, "owner", 0), (1, "none", 1))
    assert roles == {training, rollout}


@pytest.mark.engine
def test_the_evidence_verifies_and_a_second_run_resumes(s2):
    """Failing means that a colleague cannot check the run."""
    summary, root = s2
    done = xcfg("verify", str(root))
    assert done.returncode == 0 and " 0 failed" in done.stdout, done.stdout[-2000:]
    again = xcfg(*RUN, "--output-root", str(root))
    assert all(case["resumed"] for case in json.loads(again.stdout)["cases"])
    assert again.returncode == summary["exit_code"]

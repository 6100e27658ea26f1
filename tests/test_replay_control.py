"""Sampling with a real vLLM and replaying at once gives the recording again, to the bit, on one rank and on two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.engine, pytest.mark.slow]


def xcfg(*words):
    """The JSON document of `xcfg WORDS`."""
    command = [sys.executable, "-m", "xcfg", *map(str, words), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_replay_right_after_sampling_is_the_recording(tmp_path, ranks):
    """Failing means that forcing a token changes the engine under test, unless its repeats differ as well."""
    rollout = tmp_path / "rollout"
    made = xcfg(
        *("freeze", "--runtime", "vllm", "--checkpoint", "builtin:tiny-qwen3-512", "--output", rollout),
        *("--prompts", ROOT / "examples/quickstart/tiny-prompts.jsonl", "--limit", 4, "--max-new-tokens", 12),
        *("--ignore-eos", "--set", "batch.size=4", "--set", f"rollout.tensor_parallel_size={ranks}"),
    )
    document = {
        "schema_version": "cross_config.experiment_config.v2",
        "experiment_id": "replay",
        "scenario_id": "replay",
        "strategy": "one_at_a_time",
        "identity": {"rollout": {"path": str(rollout), "sha256": made["sha256"]}},
        "baseline": {
            "batch": {"size": 4},
            "rollout": {"dtype": "bfloat16", "attention_backend": "model_default", "tensor_parallel_size": ranks},
            "training": {"compute_dtype": "bfloat16", "attention_backend": "sdpa"},
        },
        "interventions": [],
        "controls": {"repeats": 1, "reference": False},
    }
    file = tmp_path / "replay.json"
    file.write_text(json.dumps(document))
    done = xcfg("run", file, "--rollout", "vllm", "--training", "torch", "--output-root", tmp_path / "runs")
    edges = [case["edges"]["decode_vs_recorded"] for case in done["cases"]]
    assert len(edges) == 2 and all(edge["active_tokens"] == 48 for edge in edges), edges
    assert [edge["max_abs"] for edge in edges] == [0.0, 0.0], "in this build repeats of a CPU are equal to the bit"

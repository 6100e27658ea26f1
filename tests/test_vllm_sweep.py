"""Knobs of a real vLLM on a CPU, one rank: what each moves, held to what was measured by other means."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.engine, pytest.mark.slow]
WITHIN = 10.0
"""Figures are orders of magnitude: another tiny model than the one of the measurement, the same kind of machine."""
MEASURED = {
    ("rollout.dtype", "float16"): 6.2e-2,
    ("rollout.dtype", "float32"): 6.3e-2,
    ("rollout.kv_cache_dtype", "fp8"): 4.9e-1,
    ("rollout.kv_cache_dtype", "fp8_e5m2"): 8.6e-1,
    ("rollout.custom_ops", "none"): 4.7e-2,
    ("rollout.enforce_eager", False): 6.7e-2,
    ("rollout.max_num_batched_tokens", 16): 0.0,
    ("rollout.max_num_seqs", 1): 0.0,
    ("rollout.block_size", 64): 0.0,
    ("batch.size", 1): 0.0,
    ("rollout.logprobs_mode", "processed_logprobs"): 0.0,
    ("weights.path", "reload"): 0.0,
}
"""(knob, value) -> largest |difference| to the baseline in bfloat16, nats: probes of vLLM 0.32.0 without xcfg."""
ON_TILES = {("rollout.max_num_batched_tokens", 16): 1.7e-2}
"""The same on a processor with AMX tiles: a prompt that is cut inside one of them is rounded otherwise."""


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """(knob, value) -> (status of the knob on every rank, max |case - baseline| of the decode arm)."""
    folder = tmp_path_factory.mktemp("sweep")
    document = json.loads((ROOT / "examples/sweep/vllm.json").read_text())
    document["experiment_id"] = "sweep"
    document["identity"]["rollout"]["path"] = str(ROOT / "examples/quickstart/tiny-rollout")
    document["interventions"] = [{"path": path, "values": [value]} for path, value in MEASURED]
    document["controls"] = {"reference": False}
    file = folder / "sweep.json"
    file.write_text(json.dumps(document))
    words = ("run", str(file), "--rollout", "vllm", "--training", "torch", "--output-root", str(folder), "--json")
    command = [sys.executable, "-m", "xcfg", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    values, applied = {}, {}
    for requested in (folder / "sweep/cases").glob("*/attempt-*/requested.json"):
        label = json.loads(requested.read_text())["label"]
        loaded = torch.load(requested.parent / "score_rollout.pt", weights_only=True)
        values[label] = loaded["columns"]["selected_logprob"].numpy()
        actual = json.loads((requested.parent / "actual.json").read_text())
        applied[label] = actual["applications"]["rollout_decode"]
    assert len(values) == len(MEASURED) + 1, sorted(values)
    found = {}
    for path, value in MEASURED:
        label = next(name for name in values if name.startswith(f"{path}=") and name.endswith(str(value).lower()))
        status = {item["status"] for item in applied[label] if item["path"] == path}
        found[path, value] = status, float(np.nanmax(np.abs(values[label] - values["baseline"])))
    return found


def test_every_knob_moves_what_it_was_measured_to_move(moved):
    """Failing means that a knob does not reach the engine, or that something else changes with it."""
    wrong = {}
    here = MEASURED | (ON_TILES if torch.cpu._is_amx_tile_supported() else {})
    for name, expected in here.items():
        status, largest = moved[name]
        near = largest == 0.0 if expected == 0.0 else expected / WITHIN < largest < expected * WITHIN
        if status != {"applied"} or not near:
            wrong[name] = (status, largest, expected)
    assert not wrong

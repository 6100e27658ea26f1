"""Floors of a cold and of a warm prefix cache, and of the baseline again at the end, on real vLLM over a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from xcfg.identity.rollout import make_rollout, read_rollout, write_rollout

ROOT = Path(__file__).resolve().parent.parent
BLOCK, SEQUENCES = 32, 12
"""vLLM on a CPU caches blocks of 32 tokens; the prompts of the tiny rollout are shorter, and are made longer."""
BROUGHT = BLOCK * SEQUENCES
pytestmark = [pytest.mark.engine, pytest.mark.slow]


def xcfg(*words):
    """Run `xcfg WORDS` in the repository."""
    command = [sys.executable, "-m", "xcfg", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


def longer_prompts(folder):
    """Freeze the tiny rollout with one block and one token of every sequence as its prompt; return it."""
    tiny = read_rollout(ROOT / "examples/quickstart/tiny-rollout")
    tensors = {name: values for name, values in tiny.tensors.items() if name != "recorded_logprob"}
    active = tensors["position_ids"] > BLOCK
    tensors |= {"active_mask": active, "segment": active.astype(np.int8)}
    made = make_rollout(tensors, checkpoint=tiny.manifest.checkpoint, sampling=tiny.manifest.sampling)
    write_rollout(made, folder)
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(summary, analysis, folder of the run): vLLM with a prefix cache against plain torch, controls only."""
    root = tmp_path_factory.mktemp("caches")
    document = json.loads((ROOT / "examples/s2/vllm_fsdp.json").read_text())
    document["experiment_id"] = "caches"
    document["identity"]["rollout"] = {"path": "longer", "sha256": longer_prompts(root / "longer").sha256}
    document["baseline"]["rollout"] |= {"tensor_parallel_size": 1, "enable_prefix_caching": True, "block_size": BLOCK}
    document["baseline"]["training"]["sharding"] = "unsharded"
    document["interventions"] = [{"path": "batch.size", "values": [2]}]
    document["controls"] = {"cold": 1, "warm": 1, "at_end": 1, "reference": False}
    file = root / "caches.json"
    file.write_text(json.dumps(document))
    words = ("run", str(file), "--rollout", "vllm", "--training", "torch", "--json", "--output-root", str(root))
    done = xcfg(*words)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    found = xcfg("analyze", str(root / "caches"), "--json")
    return json.loads(done.stdout), json.loads(found.stdout), root / "caches"


def mechanisms(folder, label):
    """Yield (arm, mechanism["cache"], cached tokens) of the vLLM scores of the case with this label."""
    for line in (folder / "plan.jsonl").read_text().splitlines():
        case = json.loads(line)
        if case["label"] != label:
            continue
        for seal in (folder / "cases" / case["case_id"]).glob("*/COMPLETE"):
            for arm, key in json.loads(seal.read_text())["scores"].items():
                report = json.loads((folder / "scores" / key / "ranks.json").read_text())["reports"]
                if arm.startswith("rollout"):
                    yield arm, report[0]["mechanism"].get("cache"), report[0]["counters"]["cached_tokens"]


def test_every_control_was_scored(run):
    """Failing means that a control of a cache ends UNSUPPORTED where there is one."""
    assert {case["label"]: case["status"] in ("PASS", "MISMATCH") for case in run[0]["cases"]} == {
        "baseline": True, "batch.size=2": True, "cold 1": True, "warm 1": True, "at_end 1": True,
    }  # fmt: skip


def test_cold_is_cold_and_warm_is_warm(run):
    """Failing means that the two controls scored the same: vLLM's own count of cached tokens tells them apart."""
    found = {
        label: {arm: more for arm, *more in mechanisms(run[2], label)} for label in ("baseline", "cold 1", "warm 1")
    }
    nothing = {"brought_tokens": 0}
    assert found["baseline"] == {"rollout_prefill": [None, 0], "rollout_decode": [None, 0]}
    cold, warm = {"control": "cold", **nothing}, {"control": "warm", **nothing}
    assert found["cold 1"] == {"rollout_prefill": [cold, 0], "rollout_decode": [cold, 0]}
    filled = warm | {"brought_tokens": BROUGHT}
    assert found["warm 1"] == {"rollout_prefill": [warm, 0], "rollout_decode": [filled, BROUGHT]}


def test_the_floors_are_measured_and_say_what_the_cache_brought(run):
    """Failing means that a floor is read from the baseline, or that nobody knows what the cache did."""
    floors = {item["kind"]: item for item in run[1]["floors"]}
    assert [floors[kind]["status"] for kind in ("cold", "warm", "at_end")] == ["measured"] * 3
    assert floors["cold"]["reason"] == "0 tokens came from the cache"
    assert floors["warm"]["reason"] == f"{BROUGHT} tokens came from the cache"
    moved = {(kind, item["arm"]): item["rms"] for kind in floors for item in floors[kind].get("movement", ())}
    assert moved["cold", "rollout_decode"] == 0.0, "a score of this adapter begins cold anyway"
    assert moved["at_end", "training"] == 0.0
    assert floors["at_end"]["reason"] == ""


def test_the_page_shows_them(run):
    done = xcfg("analyze", str(run[2]))
    shown = [line.split()[:2] for line in done.stdout.split("what repeating the baseline gives")[1].splitlines()]
    assert all([kind, "measured"] in shown for kind in ("cold", "warm", "at_end")), done.stdout


def test_the_baseline_again_is_scored_last(run):
    """Failing means that what should see the drift of a machine over a run is scored in the middle of it."""
    scored = {}
    for line in (run[2] / "plan.jsonl").read_text().splitlines():
        case = json.loads(line)
        for seal in (run[2] / "cases" / case["case_id"]).glob("*/COMPLETE"):
            keys = [key for arm, key in json.loads(seal.read_text())["scores"].items() if arm != "recorded"]
            times = [(run[2] / "scores" / key / "COMPLETE").stat().st_mtime_ns for key in keys]
            scored[case["label"]] = (min(times), max(times))
    end = scored.pop("at_end 1")
    assert end[0] > max(last for _, last in scored.values())


def test_it_verifies(run):
    done = xcfg("verify", str(run[2].parent))
    assert done.returncode == 0 and " 0 failed" in done.stdout, done.stdout[-2000:]

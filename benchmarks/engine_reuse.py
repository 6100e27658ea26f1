"""Sixteen scores by real vLLM through xcfg, against plain scripts that build every engine once, and once per score.

Two engines (block sizes of the key-value cache) times four batch sizes times two arms (prefill, forced decode) are 16
side scores of the rollout; one Hugging Face prefill is the training side of all eight cases. Needs vLLM on a CPU.
Both scripts are _vllm_by_hand.py, timed from the command to its end, imports included, like `xcfg run`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _ratio import alternate, arguments, report, timed
from grid_20 import first
from safetensors.numpy import load_file
from xcfg.identity.rollout import Rollout, read_rollout, write_rollout

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BLOCKS, SIZES, ARMS = (32, 64), (8, 4, 2, 1), ("prefill", "decode")
FILES = {"prefill": "score_rollout_prefill.pt", "decode": "score_rollout.pt"}
SCORES = len(BLOCKS) * len(SIZES) * len(ARMS)
OVER = 0.06
"""Only to have the plain script count something, as xcfg does."""


def write_experiment(folder: Path, rollout: Rollout) -> Path:
    write_rollout(rollout, folder / "rollout")
    document = {
        "schema_version": "cross_config.experiment_config.v2",
        "experiment_id": "engine-reuse",
        "scenario_id": "benchmark",
        "strategy": "product",
        "identity": {"rollout": {"path": "rollout", "sha256": rollout.sha256}},
        "baseline": {
            "batch.size": SIZES[0],
            "rollout.dtype": "bfloat16",
            "rollout.block_size": BLOCKS[0],
            "training.compute_dtype": "bfloat16",
            "training.attention_backend": "sdpa",
        },
        "interventions": [
            {"path": "rollout.block_size", "values": BLOCKS[1:]},
            {"path": "batch.size", "values": SIZES[1:], "side": "rollout"},
        ],
        "controls": {"reference": False},
    }
    file = folder / "experiment.json"
    file.write_text(json.dumps(document, indent=1))
    return file


def product(experiment: Path, output: Path) -> None:
    command = [sys.executable, "-m", "xcfg", "run", str(experiment), "--rollout", "vllm", "--training", "torch"]
    done = subprocess.run([*command, "--output-root", str(output), "--json"], check=False, stdout=subprocess.PIPE)
    if done.returncode not in (0, 1):
        raise SystemExit(f"xcfg run ended with exit code {done.returncode}: {done.stdout.decode()[-2000:]}")


def script(folder: Path, checkpoint: Path, *, rebuild: bool) -> Path:
    """Run the plain script under the environment that xcfg gives its workers; return its output file."""
    scores = [{"arm": arm, "size": size} for size in SIZES for arm in ARMS]
    engines = [{"arguments": {"dtype": "bfloat16", "block_size": block}, "scores": scores} for block in BLOCKS]
    training = {"dtype": "bfloat16", "attention": "sdpa", "batch_size": SIZES[0]}
    plan, output = folder / "plan.json", folder / f"plain-{rebuild}.safetensors"
    plan.write_text(json.dumps({"training": training, "engines": engines, "rebuild": rebuild, "over": OVER}))
    threads = str(len(os.sched_getaffinity(0)))
    env = {
        "PYTHONPATH": str(HERE),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TQDM_DISABLE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }
    command = [sys.executable, str(HERE / "_vllm_by_hand.py"), str(folder / "rollout"), str(checkpoint)]
    subprocess.run(
        [*command, str(plan), str(output)],
        check=True,
        env=os.environ | env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return output


def spent(home: Path, wall: float) -> dict[str, Any]:
    """Return builds and seconds of the run from what it stored, and the rest."""
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for folder in sorted((home / "scores").iterdir()):
        timeline = json.loads((folder / "timeline.json").read_text())
        side = json.loads((folder / "COMPLETE").read_text())["arm"].partition("_")[0]
        counts[f"scores of {side}"] += 1
        counts[f"builds of {side}"] += int(timeline["seconds"].get("build", 0.0) > 0)
        for part, value in timeline["seconds"].items():
            seconds[f"{part} {side}"] += value
        seconds[f"batches {side}"] += sum(span["seconds"] for span in timeline["spans"])
    inside = sum(value for name, value in seconds.items() if name.startswith(("build", "score")))
    return {**counts, **seconds, "rest (start, imports, judging, sealing)": wall - inside}


def agreement(home: Path, plain: Path) -> tuple[int, float]:
    """Return how many of the 16 scores are the script's bit for bit, and the largest distance of any token."""
    found, same, furthest = load_file(plain), 0, 0.0
    for folder in sorted((home / "cases").iterdir()):
        attempt = max(folder.glob("attempt-*"))
        knobs = json.loads((attempt / "requested.json").read_text())["knobs"]
        size = knobs.get("batch.size@rollout", knobs.get("batch.size"))
        for arm, name in FILES.items():
            theirs = found[f"{BLOCKS.index(knobs['rollout.block_size'])}/{arm}/{size}"]
            stored = torch.load(attempt / name, weights_only=True)["columns"]
            mine = stored["selected_logprob"].numpy()[stored["active"].numpy()]
            other = theirs[~np.isnan(theirs)]
            same += int(np.array_equal(mine, other))
            furthest = max(furthest, float(np.abs(mine - other).max()))
    return same, furthest


def main() -> None:
    parser = arguments(__doc__, 2)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="folder of SmolLM2-135M, or what the rollout names"
    )
    parser.add_argument("--rollout", type=Path, default=ROOT / "examples/quickstart/rollout")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--no-rebuild", action="store_true", help="leave out the script that builds for every score")
    given = parser.parse_args()
    # Threads that spin while they wait make a decode step several times slower as soon as anything else runs.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rollout = read_rollout(given.rollout)
        experiment = write_experiment(folder, first(rollout, min(given.sequences, rollout.sequence_count)))
        state: dict[str, Any] = {"runs": 0}

        def run() -> None:
            state["runs"] += 1
            output, started = folder / f"runs-{state['runs']}", time.perf_counter()
            product(experiment, output)
            state["home"] = output / "engine-reuse"
            state["parts"] = spent(state["home"], time.perf_counter() - started)

        def plain() -> None:
            state["plain"] = script(folder, given.checkpoint, rebuild=False)

        ratios = alternate(timed(run), timed(plain), given.rounds, warm=0)
        same, furthest = agreement(state["home"], state["plain"])
        facts = {
            "product": state["parts"],
            "script": json.loads(Path(f"{state['plain']}.json").read_text())["seconds"],
            "scores_that_agree": f"{same} of {SCORES} bit for bit, all within {furthest:.1e} nats",
        }
        if not given.no_rebuild:
            started = time.perf_counter()
            anew = script(folder, given.checkpoint, rebuild=True)
            wall = time.perf_counter() - started
            facts["rebuilding_script_seconds"] = wall
            facts["rebuilding_script"] = json.loads(Path(f"{anew}.json").read_text())
            facts["rebuilding_script"].pop("judged")
            facts["rebuilding_script"] |= facts["rebuilding_script"].pop("seconds")
            facts["rebuilding_over_xcfg"] = wall / min(ratios.wall.subject)
        report("engine_reuse", ratios, as_json=given.json, **facts)
        if state["parts"]["builds of rollout"] != len(BLOCKS) or state["parts"]["scores of rollout"] != SCORES:
            raise SystemExit(f"not {SCORES} scores of {len(BLOCKS)} engines: {state['parts']}")


if __name__ == "__main__":
    main()

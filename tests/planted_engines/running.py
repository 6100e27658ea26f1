"""From a planted cause to the answer of the analysis: `xcfg run FILE`, `xcfg analyze RUN`, and the page sorted by kind.

Only `answer` knows the truth. It reads the document that `xcfg analyze --json` prints and the page that a person reads,
and sorts them; what it cannot sort as right is wrong.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planted_engines import causes
from planted_engines.causes import Planted

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = Path(__file__).with_name("plugins")
ROLLOUTS = {causes.TINY: ROOT / "examples/quickstart/tiny-rollout"}
"""Model -> a frozen rollout of 12 sequences; others are made where they are needed."""
SEQUENCES, PROMPT, NEW = 12, 6, 32
COMPARED = ("PASS", "MISMATCH")


@dataclass(frozen=True)
class Seen:
    """What a run and its analysis left. found: the document of `xcfg analyze --json`; page: what it prints."""

    found: dict[str, Any]
    page: str
    seconds: float = 0.0


def right_here(item: Planted) -> tuple[str, ...]:
    """Return the answers that are right on this processor."""
    return item.where_rounded if item.where_rounded and rounds_products() else item.right


@functools.cache
def rounds_products() -> bool:
    """Whether float32_matmul_precision "medium" acts here: the product of one layer in a process of its own."""
    program = """
import torch
torch.set_num_threads(1)
torch.set_float32_matmul_precision("medium")
x, w = torch.randn(200, 64, generator=torch.Generator().manual_seed(1)), torch.eye(64)
print(float((torch.nn.functional.linear(x, w) - x).abs().max()) > 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.strip() == "True"


def run_of(item: Planted) -> str:
    """Return the id of the experiment of a cause, which says nothing."""
    return f"run-{hashlib.sha256(item.name.encode()).hexdigest()[:8]}"


def experiment(item: Planted, rollout: dict[str, str]) -> dict[str, Any]:
    """Return the experiment file of a cause: all that the analysis gets to see."""
    training = causes.MODEL if "megatron" in item.pair[1] else causes.DENSE
    served = causes.VLLM if item.pair[0] == "vllm" else {"rollout.attention_backend": "sdpa"}
    operators: dict[str, dict[str, Any]] = {}
    for place, (backend, options) in item.operators.items():
        operation, _, side = place.partition(".")
        both = {"rollout": "native", "training": "native"}
        operators[operation] = both | {side: {"backend": backend, "options": options}}
    threads = {"rollout": {"threads": 1}, "training": {"threads": 1}}
    return {
        "schema_version": "cross_config.experiment_config.v2",
        "experiment_id": run_of(item),
        "scenario_id": "pair",
        "identity": {"rollout": rollout},
        "baseline": {
            "batch.size": 4,
            "rollout.dtype": "bfloat16",
            "training.compute_dtype": "bfloat16",
            **training,
            **served,
            **item.knobs,
        },
        "operators": operators,
        "interventions": [{"path": path, "values": [value]} for path, value in sorted(item.tries, key=str)],
        "controls": {"repeats": 1},
        "runtime_options": {side: threads[side] | item.options.get(side, {}) for side in threads},
    }


def rollout_of(model: str, folder: Path) -> dict[str, str]:
    """Return how an experiment names a frozen rollout of `model`, made by the embedded runtime where there is none."""
    place = ROLLOUTS.get(model, folder / f"rollout-{model}")
    if not place.exists():
        draw = random.Random(7)
        prompts = folder / f"prompts-{model}.jsonl"
        lines = [[draw.randrange(3, 500) for _ in range(PROMPT + 2 * at)] for at in range(SEQUENCES)]
        prompts.write_text("".join(json.dumps({"token_ids": ids}) + "\n" for ids in lines), encoding="utf-8")
        words = ("freeze", "--runtime", "torch", "--checkpoint", f"builtin:{model}", "--prompts", str(prompts))
        xcfg(*words, "--output", str(place), "--max-new-tokens", str(NEW), "--ignore-eos", hidden={})
    digest = hashlib.sha256((place / "manifest.json").read_bytes()).hexdigest()
    return {"path": str(place), "sha256": digest}


def xcfg(*words: str, hidden: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run `xcfg WORDS` with the planted plugins, and with what is hidden from it."""
    python = os.pathsep.join([str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": python, "OMP_NUM_THREADS": "1", "LAB_HIDDEN": json.dumps(hidden)}
    command = [sys.executable, "-m", "xcfg", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode == 2:
        raise SystemExit(f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


def see(item: Planted, folder: Path) -> Seen:
    """Run one cause and analyse it, both by command. `folder` holds experiments and runs, and may hold this one."""
    started = time.perf_counter()
    file, root = folder / f"{run_of(item)}.json", folder / "runs"
    file.write_text(json.dumps(experiment(item, rollout_of(item.model, folder)), indent=1), encoding="utf-8")
    pair = ("--rollout", item.pair[0], "--training", item.pair[1])
    xcfg("run", str(file), *pair, "--output-root", str(root), "--json", hidden=item.hidden)
    return Seen(*analysed(root / run_of(item)), time.perf_counter() - started)


def analysed(run: Path) -> tuple[dict[str, Any], str]:
    """Return (document, page) of `xcfg analyze RUN`, in this process: the planted plugins are not asked."""
    from xcfg.cli.main import main

    shown = []
    for words in (["analyze", str(run), "--json"], ["analyze", str(run)]):
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with contextlib.redirect_stdout(out):
            main(words)
        out.flush()
        shown.append(out.buffer.getvalue().decode())
    return json.loads(shown[0]), shown[1]


def answer(item: Planted, seen: Seen) -> str:
    """Return which kind of answer the page is, held against the truth."""
    found, words = seen.found, " ".join(seen.page.split())
    if found["status"] not in COMPARED:
        told = item.truth in causes.UNCOMPARABLE and all(name in words for name in item.names)
        return causes.STOPPED if told else causes.MISSED
    guilty = {cause["knob"] for cause in found["causes"] if cause["direction"] == "narrows"}
    true = set(item.names) if item.truth == causes.KNOB else set()
    if guilty - true:
        return causes.ACCUSED
    within = found["assessment"] == "EXPLAINED_BY_PRECISION"
    if guilty:
        return causes.WITHIN if within else causes.NAMED
    if true and true <= {*found["exonerated"], *found["not_exercised"]}:
        return causes.IDLE
    if within:
        return causes.EXPLAINED
    told = "outside the declared knobs" in words and all(name in words for name in item.names)
    return causes.OUTSIDE if told and not true else causes.MISSED

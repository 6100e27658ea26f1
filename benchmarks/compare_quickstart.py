"""Do xcfg and a script written without it find the same numbers? Case by case, edge by edge.

Runs `xcfg run EXPERIMENT` (or takes the runs of an earlier one), reads what it sealed as plain JSON, runs
independent_script.py on the same tokens under the same settings, and prints the largest disagreement. Exit code 1
where a status or a count differs, or a figure by more than 1e-6 of itself.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
AGREE = 1e-6
TINY = 1e-9
"""A figure below this is compared absolutely, on this scale: it is a rest of cancellation."""
FIGURES = ("active_tokens", "mismatches", "max_abs", "mean_abs", "rms", "p99_abs", "approx_kl0")
BUDGET = ("b_training", "b_rollout", "r_training", "r_rollout", "r_gap", "bias")
SCORED = ("PASS", "MISMATCH")
PRECISION = {"native": "float32", "xcfg.reference_logp": "float64"}
"""Precision of log_softmax by operator backend."""


def stored_cases(home: Path) -> list[dict[str, Any]]:
    """Return requested and found of the newest attempt of every case under runs/<experiment>."""
    found = []
    for folder in sorted((home / "cases").iterdir()):
        attempt = max(folder.glob("attempt-*"))
        requested = json.loads((attempt / "requested.json").read_text())
        sealed = attempt / "comparison.json"
        document = json.loads((sealed if sealed.exists() else attempt / "failure.json").read_text())
        found.append({"name": requested["label"], "requested": requested, "found": document})
    return found


def sides(requested: dict[str, Any]) -> dict[str, Any]:
    """Return a case's knobs as the fields of independent_script's two sides."""
    knobs = requested["knobs"]

    def side(name: str, dtype: str, ranks: int) -> dict[str, Any]:
        def of(path: str, default: Any = None) -> Any:
            return knobs.get(f"{path}@{name}", knobs.get(path, default))

        return {
            "dtype": of(dtype),
            "attention": of(f"{name}.attention_backend"),
            "batch_size": of("batch.size"),
            "padding_side": of("batch.padding_side", "right"),
            "packing": of("batch.packing", False),
            "logprob": PRECISION[requested["operators"]["selected_logprob"][name]["backend"]],
            "ranks": ranks,
        }

    world = requested["runtime_options"].get("training", {}).get("fsdp_world_size", 2)
    return {
        "name": requested["label"],
        "training": side("training", "training.compute_dtype", world if knobs["training.sharding"] == "fsdp" else 1),
        "rollout": side("rollout", "rollout.dtype", 1),
    }


def run_product(experiment: Path, output: Path) -> None:
    """Run the experiment; 0 and 1 say that every case was judged, 3 that some could not be honoured."""
    command = [sys.executable, "-m", "xcfg", "run", str(experiment), "--output-root", str(output), "--json"]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"xcfg run ended with exit code {done.returncode}")


def run_script(home: Path, cases: list[dict[str, Any]], checkpoint: Path) -> dict[str, Any]:
    """Run independent_script.py in a process of its own on the rollout that the store holds."""
    rollout = next(folder for folder in (home / "rollouts").iterdir() if not folder.name.startswith("."))
    contract = cases[0]["found"]["contract"]["version"]
    with tempfile.TemporaryDirectory() as scratch:
        settings, result = Path(scratch, "settings.json"), Path(scratch, "result.json")
        settings.write_text(json.dumps([sides(case["requested"]) for case in cases]))
        command = [sys.executable, str(HERE / "independent_script.py"), "--rollout", str(rollout)]
        command += ["--contract", str(ROOT / f"packages/xcfg-core/src/xcfg/contract/{contract}.json")]
        command += ["--checkpoint", str(checkpoint), "--settings", str(settings), "--output", str(result)]
        # As xcfg's workers: threads that spin while they wait slow each other down on a busy machine.
        subprocess.run(command, check=True, env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"})
        document: dict[str, Any] = json.loads(result.read_text())
        return document


def agreement(product: dict[str, Any], script: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one row per edge, and one for the precision budget, with both values of every figure."""
    for name in sorted(product["edges"] | script["edges"]):
        mine, other = product["edges"].get(name, {}), script["edges"].get(name, {})
        figures = {figure: [mine.get(figure), other.get(figure)] for figure in ("status", "threshold", *FIGURES)}
        yield _row(script["name"], name, figures)
    assessment, budget = product["assessment"], script["budget"]
    pairs = {"reference_dtype": [assessment["reference_dtype"], budget["reference_dtype"]]}
    pairs |= {name: [_value(assessment.get(name)), _value(budget[name])] for name in BUDGET}
    yield _row(script["name"], "precision budget", pairs)


def _value(item: Any) -> Any:
    return item["value"] if isinstance(item, dict) else item


def _row(case: str, edge: str, figures: dict[str, list[Any]]) -> dict[str, Any]:
    gaps = [_gap(first, second) for first, second in figures.values()]
    return {"case": case, "edge": edge, "figures": figures, "gap": max(gaps), "agrees": max(gaps) <= AGREE}


def _gap(first: Any, second: Any) -> float:
    """Return the relative difference of two figures; infinite where two values that must be equal are not."""
    if not (isinstance(first, float) and isinstance(second, float)):
        return 0.0 if first == second else math.inf
    return abs(first - second) / max(abs(first), abs(second), TINY)


def show(rows: list[dict[str, Any]], skipped: list[dict[str, Any]]) -> None:
    """Print one line per case and edge: tokens, mismatches and largest |d| of both, and the largest disagreement."""
    print(f"{'case':<44} {'edge':<30} {'status':<12} {'tokens':>7} {'over':>11} {'max |d|':>10} {'disagree':>9}")
    for row in rows:
        figures = row["figures"]
        if "status" in figures:
            status, tokens, top = (figures[name][0] for name in ("status", "active_tokens", "max_abs"))
            over = "/".join(str(value) for value in figures["mismatches"])
            line = f"{status:<12} {tokens:>7} {over:>11} {top:>10.3g}"
        else:
            ratios = [figures[name][0] for name in ("r_training", "r_rollout", "r_gap")]
            line = "R " + " ".join("-" if ratio is None else f"{ratio:.4f}" for ratio in ratios)
        end = "" if row["agrees"] else "  DIFFERS"
        print(f"{row['case'][:44]:<44} {row['edge']:<30} {line:<43} {row['gap']:>9.1e}{end}")
    for case in skipped:
        print(f"{case['name']}: {case['found']['status']}, nothing to compare")
    largest = max((row["gap"] for row in rows), default=0.0)
    print(f"{len(rows)} rows, {sum(row['agrees'] for row in rows)} agree; the largest disagreement is {largest:.2e}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--experiment", type=Path, default=ROOT / "examples/quickstart/experiment.json")
    parser.add_argument("--runs", type=Path, help="the output root of a finished run; otherwise the product runs now")
    parser.add_argument("--checkpoint", type=Path, required=True, help="the checkpoint folder that the rollout names")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        output = given.runs or Path(scratch, "runs")
        if given.runs is None:
            run_product(given.experiment, output)
        home = output / json.loads(given.experiment.read_text())["experiment_id"]
        cases = stored_cases(home)
        scored = [case for case in cases if case["found"]["status"] in SCORED and case["requested"]["role"] == "case"]
        skipped = [case for case in cases if case not in scored]
        script = run_script(home, scored, given.checkpoint)
    pairs = zip(scored, script["cases"], strict=True)
    rows = [row for product, other in pairs for row in agreement(product["found"], other)]
    if given.json:
        print(json.dumps({"rows": rows, "skipped": [case["name"] for case in skipped], "scorings": script["scorings"]}))
    else:
        show(rows, skipped)
    return 0 if rows and all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())

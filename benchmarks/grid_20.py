"""A grid of 20 cases through xcfg against a plain script with the same distinct scorings in one process.

4 training settings x 5 rollout settings share their side scores: 4 + 2 x 5 scorings and 3 of the precision budget
serve all 20 cases. The floor is independent_script.py: one process, each model loaded once, numpy judging, one JSON
file; no isolation, no evidence, no store. Both are timed from the command to its end, imports included.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from _ratio import alternate, arguments, report, timed
from compare_quickstart import agreement, run_product, run_script, stored_cases
from xcfg.identity.rollout import Rollout, make_rollout, read_rollout, write_rollout

ROOT = Path(__file__).resolve().parent.parent
PER_TOKEN = ("token_ids", "selected_token_ids", "active_mask", "attention_mask", "position_ids", "segment")
AXES: dict[str, list[Any]] = {
    "training.attention_backend": ["sdpa", "eager"],
    "batch.size@training": [8, 16],
    "batch.size@rollout": [8, 4, 12, 16, 32],
}
CASES = 20


def write_experiment(folder: Path, rollout: Rollout) -> Path:
    """Write the experiment of the grid beside its rollout; return the file."""
    write_rollout(rollout, folder / "rollout")
    axes = [(*key.partition("@")[::2], values[1:]) for key, values in AXES.items()]
    document = {
        "schema_version": "cross_config.experiment_config.v2",
        "experiment_id": "grid-20",
        "scenario_id": "benchmark",
        "strategy": "product",
        "identity": {"rollout": {"path": "rollout", "sha256": rollout.sha256}},
        "baseline": {
            "batch.size": 8,
            "rollout.dtype": "bfloat16",
            "rollout.attention_backend": "sdpa",
            "training.compute_dtype": "bfloat16",
            "training.attention_backend": "sdpa",
        },
        "interventions": [
            {"path": path, "values": values} | ({"side": side} if side else {}) for path, side, values in axes
        ],
    }
    file = folder / "experiment.json"
    file.write_text(json.dumps(document, indent=1))
    return file


def first(rollout: Rollout, count: int) -> Rollout:
    """Return the first `count` sequences as a rollout of their own."""
    offsets = rollout.offsets[: count + 1]
    names = [*PER_TOKEN, "weight_version", "recorded_logprob"]
    tensors = {name: rollout.tensors[name][: offsets[-1]] for name in names if name in rollout.tensors}
    return make_rollout({**tensors, "offsets": offsets}, checkpoint=rollout.manifest.checkpoint)


def spent(home: Path, wall: float) -> dict[str, Any]:
    """Return where the product's seconds went, from what it stored: per score, per build, and the rest."""
    seconds: dict[str, float] = defaultdict(float)
    for folder in sorted((home / "scores").iterdir()):
        timeline = json.loads((folder / "timeline.json").read_text())["seconds"]
        seal = json.loads((folder / "COMPLETE").read_text())
        for part, value in timeline.items():
            seconds[f"{part} {seal['arm']}"] += value
            seconds[f"sum of {part}"] += value
    scored = seconds["sum of build"] + seconds["sum of score"]
    return {**seconds, "rest (start, imports, judging, sealing)": wall - scored}


def main() -> None:
    parser = arguments(__doc__, 3)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="folder of SmolLM2-135M (or what the rollout names)"
    )
    parser.add_argument("--rollout", type=Path, default=ROOT / "examples/quickstart/rollout")
    parser.add_argument("--sequences", type=int, default=32)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rollout = read_rollout(given.rollout)
        experiment = write_experiment(folder, first(rollout, min(given.sequences, rollout.sequence_count)))
        state: dict[str, Any] = {"runs": 0, "parts": {}}

        def product() -> None:
            state["runs"] += 1
            output, started = folder / f"runs-{state['runs']}", time.perf_counter()
            run_product(experiment, output)
            state["home"] = output / "grid-20"
            state["parts"] = spent(state["home"], time.perf_counter() - started)

        def script() -> None:
            state["script"] = run_script(state["home"], state["cases"], given.checkpoint)

        product()
        state["cases"] = stored_cases(state["home"])
        ratios = alternate(timed(product), timed(script), given.rounds, warm=0)
        rows = check(state["cases"], state["script"])
        report(
            "grid_20",
            ratios,
            as_json=given.json,
            cases=len(state["cases"]),
            distinct_scorings=state["script"]["scorings"],
            product_seconds=state["parts"],
            script_seconds=summed(state["script"]["seconds"]),
            rows_that_agree=f"{sum(row['agrees'] for row in rows)} of {len(rows)}",
        )


def check(cases: list[dict[str, Any]], script: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of agreement; SystemExit when the grid is not what the docstring says."""
    if len(cases) != CASES:
        raise SystemExit(f"{len(cases)} cases, not {CASES}: {[case['found']['status'] for case in cases]}")
    pairs = zip(cases, script["cases"], strict=True)
    return [row for case, other in pairs for row in agreement(case["found"], other)]


def summed(spans: list[dict[str, Any]]) -> dict[str, float]:
    """Return seconds by the first word of what was done."""
    found: dict[str, float] = defaultdict(float)
    for span in spans:
        found[span["what"].split()[0]] += span["seconds"]
    return dict(found)


if __name__ == "__main__":
    main()

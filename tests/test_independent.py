"""xcfg against a script that imports none of it: same tokens, same settings, same numbers."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
BY_HAND = ("independent_script.py", "_by_hand.py", "_float64.py")
PROMPTS = 10
EXPERIMENT: dict[str, Any] = {
    "schema_version": "cross_config.experiment_config.v2",
    "experiment_id": "independent",
    "scenario_id": "tiny-bf16",
    "baseline": {
        "batch.size": 4,
        "batch.padding_side": "right",
        "batch.packing": False,
        "rollout.dtype": "bfloat16",
        "rollout.attention_backend": "sdpa",
        "training.compute_dtype": "bfloat16",
    },
    "interventions": [
        {"path": "rollout.dtype", "values": ["float32"]},
        {"path": "training.compute_dtype", "values": ["float32"]},
        {"path": "rollout.attention_backend", "values": ["eager"]},
        {"path": "training.attention_backend", "values": ["eager"]},
        {"path": "batch.size", "values": [3]},
        {"path": "batch.padding_side", "values": ["left"], "side": "rollout"},
        {"path": "batch.padding_side", "values": ["left"], "side": "training"},
        {"path": "batch.packing", "values": [True], "side": "training"},
        {"path": "training.sharding", "values": ["fsdp"]},
    ],
}
CASES = 1 + len(EXPERIMENT["interventions"])
Rows = dict[tuple[str, str], dict[str, Any]]


def run(command: list[str], *, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode in codes, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """(case, edge) -> the row that compare_quickstart.py prints for a run of EXPERIMENT on the tiny model."""
    import xcfg
    from xcfg.flow.checkpoints import find_checkpoint

    folder = tmp_path_factory.mktemp("independent")
    prompts = ([(7 * index + 3 * place) % 512 for place in range(4 + 5 * index % 17)] for index in range(PROMPTS))
    lines = [json.dumps({"token_ids": prompt}) for prompt in prompts]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    checkpoint = find_checkpoint("builtin:tiny-qwen3-512", xcfg.load_plugins())
    frozen = xcfg.freeze(
        checkpoint.uri,
        folder / "prompts.jsonl",
        folder / "rollout",
        max_new_tokens=16,
        seed=5,
        settings={"batch.size": 4},
    )
    document = {**EXPERIMENT, "identity": {"rollout": {"path": "rollout", "sha256": frozen.sha256}}}
    (folder / "experiment.json").write_text(json.dumps(document))
    compare = [sys.executable, str(BENCHMARKS / "compare_quickstart.py"), "--json"]
    compare += ["--experiment", str(folder / "experiment.json"), "--checkpoint", str(checkpoint.folder)]
    found = json.loads(run(compare, codes=(0, 1)))
    assert not found["skipped"], "the product gave no numbers for some case"
    return {(row["case"], row["edge"]): row for row in found["rows"]}


def test_the_script_imports_no_xcfg() -> None:
    """Failing means that the script borrows from what it checks."""
    for name in BY_HAND:
        tree = ast.parse((BENCHMARKS / name).read_text(encoding="utf-8"))
        plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        plain |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not [module for module in plain if module.split(".")[0].startswith("xcfg")], name


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_every_status_and_figure_is_found_again(rows: Rows) -> None:
    """Failing means that xcfg scores, compares or judges otherwise than its documentation says."""
    assert len({case for case, _ in rows}) == CASES
    assert "training.sharding=fsdp" in {case for case, _ in rows}
    compared = 0
    for (case, edge), row in rows.items():
        for figure, (product, script) in row["figures"].items():
            where = f"{case}, {edge}, {figure}: {product!r} by xcfg, {script!r} by hand"
            if isinstance(product, float) and isinstance(script, float):
                assert math.isclose(product, script, rel_tol=1e-6, abs_tol=1e-15), where
            else:
                assert product == script, where
            compared += 1
    assert compared > 60 * CASES, "edges or figures are missing"


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_every_case_has_a_precision_budget(rows: Rows) -> None:
    """Failing means that the ratios above agree because both are missing."""
    for case in {case for case, _ in rows}:
        figures = rows[case, "precision budget"]["figures"]
        for name in ("b_training", "b_rollout", "r_training", "r_rollout"):
            assert figures[name][0] > 0, (case, name)


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_the_cases_have_different_numbers(rows: Rows) -> None:
    """Failing means that a setting reached neither program, and equal numbers would say nothing."""
    names = ("rms", "max_abs", "mean_abs")
    edges = ("training_vs_reference", "rollout_decode_vs_reference", "rollout_prefill_vs_reference")
    found = {
        case: tuple(tuple(rows[case, edge]["figures"][name][1] for name in names) for edge in edges) for case, _ in rows
    }
    moved = {case for case, figures in found.items() if figures != found["baseline"]}
    assert {case for case in found if "dtype" in case or "attention" in case or "packing" in case} <= moved
    assert "training.sharding=fsdp" not in moved, "sharding moved a number"

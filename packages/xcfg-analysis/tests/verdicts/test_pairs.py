"""A4, the pairs of classes, on the embedded runtime: where it runs, what it says then, and where it is skipped."""

from __future__ import annotations

import json
import shlex

import pytest
from xcfg.cli.main import main
from xcfg_analysis.cube.load import load_cube
from xcfg_analysis.rules.points import Outcome, find_points

SHIFT = "planted.shift_in_float32"
"""Faulty in float32 alone, so that the operator and the dtype do together what neither does."""
PRODUCTION = {
    "batch": {"size": 4},
    "rollout": {"dtype": "float32", "attention_backend": "sdpa"},
    "training": {"compute_dtype": "bfloat16", "attention_backend": "sdpa", "sharding": "fsdp"},
}


def write(runs, folder, name, backend, **baseline):
    operators = {"selected_logprob": {"rollout": backend, "training": "native"}}
    changes = {"interventions": [], "operators": operators, "controls": {"reference": False}}
    return runs.write_experiment(folder, experiment_id=name, baseline={**PRODUCTION, **baseline}, **changes)


@pytest.fixture
def call(capsys):
    """call(words...) -> (exit code, stdout, stderr) of `xcfg`."""

    def run(*words):
        code = main([str(word) for word in words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.mark.usefixtures("planted")
def test_pairs_run_where_every_class_passes_alone_and_production_fails(runs, tmp_path, monkeypatch, call):
    """Failing means that an interaction is blamed on one class, or that the pairs that would show it never run."""
    monkeypatch.chdir(tmp_path)
    file = write(runs, tmp_path, "both", SHIFT)
    code, _, error = call("run", file, "--profile", "A4")
    assert code == 3 and "A4 is skipped: there is no run of A1, A2, A3 and A5" in error

    assert call("run", file, "--profile", "A0-A5")[0] == 1
    points = find_points(load_cube(tmp_path / "runs" / "both-profiles"))
    assert {of: points.outcome(row) for of, row in points.singles.items()} == dict.fromkeys(
        ("arithmetic", "reduction", "representation"), Outcome.PASSES
    )
    assert points.outcome(points.production) is Outcome.FAILS and not points.pairs
    code, page, _ = call("analyze", "runs/both-profiles")
    assert code == 1 and "run the pairs of classes (A4)" in page
    assert "run --profile A4 before one subsystem is blamed" in " ".join(page.split())
    wrote, ran = (shlex.split(part)[1:] for part in page.splitlines()[-1].strip().split("; "))
    assert call(*wrote)[0] == 1 and (tmp_path / "both-profiles-next.json").is_file()

    assert call("run", file, "--profile", "A4")[0] == 1
    points = find_points(load_cube(tmp_path / "runs" / "both-profiles"))
    assert {pair: points.outcome(row).value for pair, row in points.pairs.items()} == {
        ("arithmetic", "reduction"): "passes",
        ("arithmetic", "representation"): "fails",
        ("reduction", "representation"): "passes",
    }
    document = json.loads(call("analyze", "runs/both-profiles", "--json")[1])
    (third,) = [item for item in document["rules"]["interpretation"] if item["rule"] == "interpretation 3"]
    assert third["holds"] and "smallest failing pair is arithmetic + representation" in third["text"]

    code, out, _ = call(*ran)
    lines = [line for line in out.splitlines() if "PASS  " in line or "MISMATCH  " in line]
    assert code == 1 and len(lines) == len(load_cube(tmp_path / "runs" / "both-profiles").rows)
    assert all(line.endswith("(resumed)") for line in lines), "the printed command asks for the same cases"


@pytest.mark.usefixtures("planted")
def test_pairs_are_skipped_where_one_class_fails_alone(runs, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    plain = {**PRODUCTION["training"], "sharding": "unsharded"}
    tempered = {"backend": "planted.tempered", "options": {"temperature": 0.7}}
    file = write(runs, tmp_path, "one", tempered, training=plain)
    assert call("run", file, "--profile", "A0-A5")[0] == 1
    code, _, error = call("run", file, "--profile", "A4")
    assert code == 3 and "A4 is skipped: arithmetic alone fails" in error
    points = find_points(load_cube(tmp_path / "runs" / "one-profiles"))
    assert [row.case_id for row in points.pairs.values()] == [points.production.case_id], "of two classes, A5 is it"

"""`xcfg matrix` as people call it: the manifest, what is not there, and a whole matrix on an engine's own logits."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from xcfg.cli.main import main

TINY = Path(__file__).parents[1] / "examples" / "quickstart" / "tiny.json"


def called(capsys, *words: str) -> tuple[int, dict]:
    """Return the exit code and the JSON document of one command."""
    code = main(["matrix", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def schema(capsys, name: str) -> dict:
    """Return a published schema."""
    assert main(["schema", name, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_manifest_is_exported_and_imported(capsys, tmp_path):
    """If this fails, a list of rows that somebody keeps is not the list that runs."""
    file = tmp_path / "rows.json"
    code, listed = called(capsys, "all", "--manifest", "--output", str(file))
    assert code == 0
    assert json.loads(file.read_text()) == listed
    jsonschema.validate(listed, schema(capsys, "matrix_manifest"))
    assert {item["module"]: item["status"] for item in listed["modules"]}["logp"] == "available"
    listed["modules"][0]["rows"] = [{"row": "L9", "role": "row", "summary": "none", "probe": "none"}]
    file.write_text(json.dumps(listed))
    code, error = called(capsys, "logp", str(TINY), "--rows", str(file))
    assert (code, error["kind"]) == (2, "config")
    assert "'L9'" in error["message"] and "$.modules[0].rows[0]" in error["message"]


def test_what_is_not_there_is_said(capsys):
    """If this fails, a matrix that does not exist looks like one that passed."""
    _, listed = called(capsys, "all", "--manifest")
    planned = [item for item in listed["modules"] if item["status"] == "planned"]
    for item in planned:
        code, error = called(capsys, item["module"], str(TINY))
        assert code == 2
        assert item["missing"] in error["message"] + error["hint"]
    code, error = called(capsys, "nothing", str(TINY))
    assert (code, error["kind"]) == (2, "unknown_name")
    assert "logp" in error["message"] + error["hint"]
    code, error = called(capsys, "logp")
    assert (code, error["kind"]) == (2, "usage")
    code, error = called(capsys, "logp", str(TINY), "--backend", "xcfg.capture_logp")
    assert (code, error["kind"]) == (2, "unknown_name")


@pytest.mark.slow
def test_all_matrices_on_an_engine_s_own_logits(capsys, tmp_path):
    """If this fails, `xcfg matrix all` does not run what is there, or passes with a module missing."""
    file, root = tmp_path / "report.json", tmp_path / "runs"
    code, report = called(capsys, "all", str(TINY), "--output-root", str(root), "--output", str(file))
    assert json.loads(file.read_text()) == report
    jsonschema.validate(report, schema(capsys, "matrix"))
    assert code == report["exit_code"] == (3 if report["missing"] else 0)
    assert not list(root.iterdir()), "captured logits are not kept"
    rows = [row for row in report["rows"] if row["module"] == "logp"]
    assert {row["row"] for row in rows} == {"L0", "L1", "L2", "L3", "LC0"}
    assert {row["edge"] for row in rows} == {"training_vs_rollout_prefill", "rollout_prefill_vs_rollout_decode"}
    assert {row["status"] for row in rows} == {"PASS"}
    controls = [row["metrics"] for row in rows if row["role"] in ("baseline", "control")]
    assert all(item["unequal"] == 0 and item["compared"] >= 384 for item in controls)
    merged = [row for row in rows if row["probe"] == "merge_order"]
    assert all(0 < row["metrics"]["out_max_abs"] < 2e-6 for row in merged)
    prefill, decode = (row["metrics"]["selected_max_abs_without"] for row in merged[::2])
    assert prefill == 0 < decode, "training and prefill run one model in one layout here; cached decode does not"


@pytest.mark.engine
@pytest.mark.slow
def test_the_logits_of_vllm_and_megatron_are_replayed(capsys, tmp_path):
    """If this fails, only the embedded runtime can be taken apart: rows of two ranks are mixed up, or not captured."""
    pytest.importorskip("vllm")
    pytest.importorskip("megatron.core")
    file = TINY.parents[1] / "s2" / "vllm_megatron.json"
    words = ("--rollout", "vllm", "--training", "megatron", "--output-root", str(tmp_path))
    code, report = called(capsys, "logp", str(file), *words)
    assert code == 0, report
    assert report["runtimes"] == {"rollout": "vllm", "training": "megatron"}
    controls = [row["metrics"] for row in report["rows"] if row["role"] in ("baseline", "control")]
    assert all(item["unequal"] == 0 and item["compared"] >= 384 for item in controls)
    owned = next(row["program"] for row in report["rows"] if row["row"] == "L1" and row["edge"].startswith("training"))
    assert owned["training"]["shards"] == owned["rollout_prefill"]["shards"] == [[0, 256], [256, 512]]
    merged = [row["metrics"] for row in report["rows"] if row["row"] == "L3"]
    assert all(0 < item["out_max_abs"] < 2e-6 for item in merged)
    assert max(item["selected_max_abs_without"] for item in merged) > 1e-3, "two engines in bfloat16 differ elsewhere"

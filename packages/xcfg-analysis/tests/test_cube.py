"""The cube of a real run: what it says against the sealed files, its questions, its formats."""

from __future__ import annotations

import csv
import io
import json

import jsonschema
import numpy as np
import pyarrow.parquet
import pytest
import xcfg
from xcfg.cli.main import main
from xcfg.errors import ArtifactError, NothingSelectedError, UnknownNameError, UsageError
from xcfg.schema.codec import evolve
from xcfg_analysis.cube import query, table
from xcfg_analysis.cube.load import Evidence, load_cube


@pytest.fixture(scope="module")
def evidence(grid, manager):
    return Evidence.open(grid, plugins=manager)


@pytest.fixture(scope="module")
def cube(evidence):
    return evidence.cube


def only(cube, label):
    return next(row for row in cube.rows if row.label == label)


def test_every_planned_case_is_a_row_in_the_order_of_the_plan(cube, grid):
    plan = [json.loads(line) for line in (grid / "plan.jsonl").read_text().splitlines()]
    assert [row.case_id for row in cube.rows] == [line["case_id"] for line in plan]
    assert cube.baseline.label == "baseline"
    assert {row.role for row in cube.rows} == {"case", "repeat", "fresh", "shuffled", "cold", "at_end"}
    assert only(cube, "cold 1").status == "UNSUPPORTED"


def test_figures_are_those_of_the_sealed_comparison(cube, grid):
    for row in cube.rows:
        file = grid / "cases" / row.case_id / row.attempt / "comparison.json"
        if not file.exists():
            assert row.edges == {}
            continue
        sealed = json.loads(file.read_text())
        assert row.status == sealed["status"]
        assert {name: edge.rms for name, edge in row.edges.items()} == {
            name: edge["rms"] for name, edge in sealed["edges"].items()
        }


def test_an_edge_is_training_minus_decode_and_gives_the_sealed_figures(evidence, cube):
    """An independent way to the same numbers: from both score files, in float64."""
    for row in cube.rows[:3]:
        d, mask = evidence.difference(row, row.verdict_edge)
        scores = [evidence.scores(row, arm) for arm in ("training", "rollout_decode")]
        expected = (scores[0] - scores[1])[evidence.active]
        assert np.array_equal(d[mask], expected)
        edge = row.edges[row.verdict_edge]
        assert np.sqrt(np.mean(expected**2)) == pytest.approx(edge.rms, rel=1e-12)
        assert np.abs(expected).max() == edge.max_abs
        assert np.count_nonzero(np.abs(expected) > row.threshold) == edge.mismatches


def test_axes_hold_what_was_asked_for_and_what_ran(cube):
    precise = only(cube, "training.compute_dtype=float32")
    cell = precise.axes["training.compute_dtype"]
    assert (cell.requested, cell.actual, cell.status, cell.exercised) == ("float32", "float32", "applied", "yes")
    assert cube.baseline.axes["training.compute_dtype"].actual == "bfloat16"
    operator = only(cube, "operators.selected_logprob.training=reference").axes["operators.selected_logprob.training"]
    assert (operator.requested, operator.actual) == ("reference", "xcfg.reference_logp")
    assert cube.definitions["training.compute_dtype"]["group"] == "compute_dtype"


def test_a_score_that_two_cases_share_is_one_and_equal_digests_are_equal_bits(evidence, cube):
    base, eager = cube.baseline, only(cube, "training.attention_backend=eager")
    assert base.arms["rollout_decode"].key == eager.arms["rollout_decode"].key
    assert base.arms["training"].digest != eager.arms["training"].digest
    repeat = only(cube, "repeat 1")
    assert repeat.arms["training"].key != base.arms["training"].key, "a control is never the baseline's own score"
    equal = np.array_equal(evidence.scores(repeat, "training"), evidence.scores(base, "training"), equal_nan=True)
    assert equal == (repeat.arms["training"].digest == base.arms["training"].digest)


def test_fresh_controls_come_from_other_processes(cube):
    """Failing means that nothing shows that a fresh process was one."""
    lives = [
        set(zip(row.arms[arm].processes, row.arms[arm].started, strict=True))
        for row in (cube.baseline, only(cube, "fresh 1"), only(cube, "fresh 2"))
        for arm in ("training", "rollout_decode")
    ]
    assert all(lives)
    for arm in range(2):
        assert len(lives[arm] | lives[arm + 2] | lives[arm + 4]) == 3
    assert only(cube, "repeat 1").arms["training"].processes == cube.baseline.arms["training"].processes


def test_where_keeps_what_was_asked_for(cube):
    kept = query.where(cube, query.parse_where(["training.compute_dtype=float32", "role=case"]))
    assert {row.axes["training.compute_dtype"].requested for row in kept.rows} == {"float32"}
    assert len(query.where(cube, query.parse_where(["batch.size=2"])).rows) == 1, "a value is JSON: 2 is no text"
    with pytest.raises(NothingSelectedError, match=r"batch\.size=3"):
        query.where(cube, {"batch.size": [3]})
    with pytest.raises(UnknownNameError, match=r"batch\.sise"):
        query.where(cube, {"batch.sise": [3]})
    with pytest.raises(UsageError, match="is no condition"):
        query.parse_where(["batch.size"])


def test_a_slice_is_the_experiments_own(cube):
    assert len(query.named_slice(cube, "precise").rows) == 2
    with pytest.raises(UnknownNameError, match="precis"):
        query.named_slice(cube, "precis")


def test_a_slice_by_label_is_what_a_run_would_select(cube):
    """Failing means that `xcfg cube --slice` knows fewer slices than `xcfg run --slice` and `xcfg gate`."""
    made = evolve(cube, experiment=cube.experiment | {"slices": {"dtype": {"label": ["*compute_dtype=*"]}}})
    found = query.named_slice(made, "dtype").rows
    assert [row.label for row in found] == [row.label for row in cube.rows if "compute_dtype=" in row.label]
    assert len(found) == 2 and {row.role for row in found} == {"case"}
    nobody = evolve(cube, experiment=cube.experiment | {"slices": {"nobody": {"label": ["nobody"]}}})
    with pytest.raises(NothingSelectedError, match="nobody"):
        query.named_slice(nobody, "nobody")


def test_a_pivot_holds_one_figure_per_cell(cube):
    found = query.pivot(cube, "training.compute_dtype", "training.attention_backend", "rms")
    assert (found.row_values, found.column_values) == (("bfloat16", "float32"), ("sdpa", "eager"))
    labels = (
        ("baseline", "training.attention_backend=eager"),
        ("training.compute_dtype=float32", "training.compute_dtype=float32, training.attention_backend=eager"),
    )
    for line, names in zip(found.cells, labels, strict=True):
        for value, label in zip(line, names, strict=True):
            row = only(cube, label)
            assert value == row.edges[row.verdict_edge].rms
    lone = query.pivot(cube, "training.compute_dtype", "batch.size", "status")
    assert lone.cells == (("PASS", "PASS"), (lone.cells[1][0], None)), "a cell that was not run is empty, not invented"
    with pytest.raises(UnknownNameError, match="rmse"):
        query.pivot(cube, "training.compute_dtype", "batch.size", "rmse")


def test_formats_hold_the_same_table(cube, tmp_path):
    rows = table.flat(cube)
    for name in ("cube.json", "cube.csv", "cube.parquet"):
        table.write(cube, tmp_path / name)
    document = json.loads((tmp_path / "cube.json").read_text())
    assert [row["case_id"] for row in document["rows"]] == [row["case_id"] for row in rows]
    lines = list(csv.DictReader(io.StringIO((tmp_path / "cube.csv").read_text(), newline="")))
    stored = pyarrow.parquet.read_table(tmp_path / "cube.parquet").to_pylist()
    name = "training_vs_rollout.rms"
    assert [float(line[name]) if line[name] else None for line in lines] == [row[name] for row in rows]
    assert [line[name] for line in stored] == [row[name] for row in rows]
    assert [line["requested.batch.size"] for line in stored] == [row["requested.batch.size"] for row in rows]
    assert [line["label"] for line in lines if line[name] == ""] == ["cold 1"]
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(UsageError, match="no suffix"):
        table.write(cube, tmp_path / "cube.xlsx")


def test_the_command_prints_one_document(grid, capsys):
    assert main(["cube", str(grid), "--json", "--where", "role=case"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == "xcfg.cube.v1"
    assert len(document["rows"]) == 6
    assert main(["cube", str(grid)]) == 0
    assert "UNSUPPORTED" in capsys.readouterr().out
    assert main(["cube", str(grid.parent)]) == 2
    assert "It holds these: grid" in capsys.readouterr().err
    assert main(["cube", str(grid), "--runtimes", "vllm/torch"]) == 2
    assert "torch/torch" in capsys.readouterr().err


def test_an_altered_score_is_no_row(grid, tmp_path, manager):
    """Failing means that an analysis stands on numbers that somebody changed."""
    import shutil

    copy = tmp_path / "grid"
    shutil.copytree(grid, copy)
    case = load_cube(copy, plugins=manager).cases[0]
    file = copy / "cases" / case.case_id / case.attempt / "token_diffs.pt"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.unlink()
    file.write_bytes(bytes(data))
    found = load_cube(copy, plugins=manager)
    assert case.label in found.missing
    assert case.case_id not in {row.case_id for row in found.rows}
    shutil.rmtree(copy / "cases")
    with pytest.raises(NothingSelectedError, match="no case"):
        xcfg.open_run(copy)
    (copy / "plan.jsonl").write_text("{}\n")
    with pytest.raises(ArtifactError, match="no whole revision"):
        xcfg.open_run(copy)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cube", ("cube",)),
        ("pivot", ("cube", "--pivot", "training.compute_dtype", "training.attention_backend")),
        ("analysis", ("analyze",)),
    ],
)
def test_what_is_printed_is_what_the_schema_says(grid, capsys, name, words):
    """Failing means that a program which reads the document by its published schema reads it wrong."""
    assert main(["schema", name, "--json"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    main([words[0], str(grid), *words[1:], "--json"])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema)
    assert document["schema_version"] == f"xcfg.{name}.v1"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"schema_version": "xcfg.other.v1"}, schema)

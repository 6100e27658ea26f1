"""The journey of `xcfg matrix` with matrices made by hand: which rows reach a runner, and which code comes out."""

from __future__ import annotations

import json

import pytest
from xcfg.errors import (
    ArtifactError,
    ConfigError,
    ExecutionError,
    NothingSelectedError,
    UnknownNameError,
    UsageError,
)
from xcfg.flow import matrix
from xcfg.flow.options import RunOptions
from xcfg.plugin.manager import Provided
from xcfg.plugin.provide import DebugMatrix
from xcfg.schema import codec
from xcfg.schema.matrix import MatrixRow, MatrixRowDefinition

TABLE = tuple(
    MatrixRowDefinition(row=row, role=role, summary="", probe=probe, tier=tier)
    for row, role, probe, tier in (
        ("G", "gate", "g", "default"),
        ("R", "row", "one", "default"),
        ("R", "probe", "two", "secondary"),
        ("R", "probe", "three", "all"),
    )
)
ASKED = []
STATUS = {"value": "PASS"}


def runner(request):
    """Return one row per definition, with the status that the test asks for."""
    ASKED.append(request)
    return tuple(
        MatrixRow(
            module="made",
            row=item.row,
            role=item.role,
            probe=item.probe,
            edge="a_vs_b",
            status=STATUS["value"],
            comparable=True,
            metrics={},
        )
        for item in request.rows
    )


class Manager:
    """Just enough of the plugin manager."""

    def __init__(self, *records: DebugMatrix) -> None:
        self.records = records

    def _of(self, status):
        return [Provided(item, "p", "d", "1") for item in self.records if item.status == status]

    def debug_matrices(self):
        return tuple(self._of("available"))

    def planned(self):
        return tuple(("debug matrix", item) for item in self._of("planned"))

    def hint(self, noun, name):
        return ""


@pytest.fixture
def manager(monkeypatch):
    ASKED.clear()
    STATUS["value"] = "PASS"
    monkeypatch.setattr(matrix, "resolve", lambda reference, owner="": runner)
    made = DebugMatrix(
        module="made", summary="", factory="a.b:c", rows=("G", "R"), table=TABLE, note="read the other first"
    )
    return Manager(made, DebugMatrix(module="later", summary="", factory="", status="planned", missing="its kernels"))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps({"experiment_id": "mine"}))
    return path


@pytest.mark.parametrize(("tier", "probes"), [("default", 2), ("secondary", 3), ("all", 4)])
def test_a_tier_chooses_probes(manager, file, tier, probes):
    """If this fails, a secondary probe runs unasked, or never."""
    report = matrix.run(manager, "made", file, tier=tier)
    assert len(report.rows) == probes
    assert (report.exit_code, report.experiment_id, report.missing) == (0, "mine", {})
    assert report.notes == {"made": "read the other first"}


@pytest.mark.parametrize(
    ("status", "code"), [("PASS", 3), ("MISMATCH", 3), ("CONTROL_FAILED", 3), ("WORKER_FAILED", 4)]
)
def test_all_says_what_is_not_there_and_does_not_pass(manager, file, status, code):
    """If this fails, a module that was never run counts as one that passed."""
    STATUS["value"] = status
    report = matrix.run(manager, "all", file)
    assert report.missing == {"later": "its kernels"}
    assert report.exit_code == code
    assert [request.rows[0].row for request in ASKED] == ["G"]


@pytest.mark.parametrize(
    ("status", "code"), [("PASS", 0), ("MISMATCH", 1), ("NOT_COMPARABLE", 3), ("UNSUPPORTED", 3), ("TIMEOUT", 4)]
)
def test_codes(manager, file, status, code):
    """If this fails, a pipeline takes one outcome for another."""
    STATUS["value"] = status
    assert matrix.run(manager, "made", file).exit_code == code


def test_names(manager, file):
    """If this fails, a misspelt module runs nothing and passes."""
    with pytest.raises(UnknownNameError, match="'mad'"):
        matrix.run(manager, "mad", file)
    empty = Manager(DebugMatrix(module="made", summary="", factory="a.b:c"))
    with pytest.raises(NothingSelectedError, match="no row"):
        matrix.run(empty, "made", file)


def test_an_imported_manifest_chooses_rows_and_sets_none(manager, file, tmp_path):
    """If this fails, a row that somebody edited in a file is run, or its edit is."""
    listed = matrix.manifest(manager, "made")
    kept = codec.plain(listed)
    kept["modules"][0]["rows"] = kept["modules"][0]["rows"][2:3]
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps(kept))
    report = matrix.run(manager, "made", file, rows=matrix.read_manifest(rows, manager))
    assert [row.probe for row in report.rows] == ["two"]
    kept["modules"][0]["rows"][0]["role"] = "control"
    rows.write_text(json.dumps(kept))
    with pytest.raises(ConfigError, match="not what 'made' offers"):
        matrix.read_manifest(rows, manager)
    rows.write_text(json.dumps({**kept, "schema_version": "other"}))
    with pytest.raises(ConfigError, match=r"schema_version"):
        matrix.read_manifest(rows, manager)


def test_a_matrix_captures_in_its_output_root_and_clears_what_killed_ones_left(manager, file, tmp_path, monkeypatch):
    """If this fails, the logits of a killed matrix fill the disk for good, or one matrix removes those of another."""
    root, during = tmp_path / "new" / "runs", []

    def capturing(request):
        with request.scratch() as outer, request.scratch() as folder:
            dead = root / f"{matrix.CAPTURED}dead"
            during.append((outer.is_dir(), folder.parent, dead.exists()))
            (folder / "logits").write_text("1")
        return runner(request)

    monkeypatch.setattr(matrix, "resolve", lambda reference, owner="": capturing)
    matrix.run(manager, "made", file, options={"output_root": root})
    assert list(root.iterdir()) == []
    (root / f"{matrix.CAPTURED}dead").mkdir()
    (root / f"{matrix.CAPTURED}dead" / "lock").touch()
    matrix.run(manager, "made", file, options={"output_root": root})
    assert list(root.iterdir()) == []
    assert during == [(True, root, False)] * 2


@pytest.mark.parametrize("name", ["loop", "file/sub", "/proc/nope", "/dev/null", "n" * 300])
def test_a_root_that_cannot_be_written_is_refused_as_by_a_run(manager, file, tmp_path, monkeypatch, name):
    """If this fails, a mistake in --output-root is reported as a fault of xcfg."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    monkeypatch.setattr(matrix, "resolve", lambda reference, owner="": lambda request: request.scratch().__enter__())
    with pytest.raises((ExecutionError, ArtifactError)) as caught:
        matrix.run(manager, "made", file, options={"output_root": tmp_path / name})
    assert name.partition("/sub")[0] in caught.value.message
    assert "output root" in caught.value.hint or "Move it away" in caught.value.hint


def test_a_root_that_no_document_can_name_is_refused(manager, file, tmp_path):
    """If this fails, a run or a matrix below such a folder ends in a fault of xcfg after it has begun."""
    root = tmp_path / "a\udcff"
    with pytest.raises(UsageError, match=r"udcff.*is not valid UTF-8"):
        matrix.run(manager, "made", file, options={"output_root": root})
    with pytest.raises(UsageError, match=r"udcff.*is not valid UTF-8"):
        RunOptions(output_root=root)
    assert not ASKED

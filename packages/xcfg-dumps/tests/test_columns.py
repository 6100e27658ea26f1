"""npz and Parquet: the canonical columns there and back, and files that only look like them."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile

import numpy as np
import pytest
from xcfg.dumps import table_of
from xcfg.errors import ArtifactError, MissingDependencyError

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(kind, folder, columns):
    path = folder / f"dump.{kind}"
    if kind == "parquet":
        parquet.write_table(arrow.table(columns), path, row_group_size=3)
    elif kind == "npz":
        np.savez(path, **columns)
    else:
        np.savez_compressed(folder / "dump.npz", **columns)
        return folder / "dump.npz"
    return path


def reader(kind):
    return "parquet" if kind == "parquet" else "npz"


KINDS = ["npz", "packed", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids", [[3, 3, 3, 3, 3, 9, 9, 9], ["a", "a", "a", "a", "a", "b", "b", "b"]])
def test_round_trip(layouts, rows, tmp_path, kind, ids):
    columns = layouts.canonical() | {"sample_id": np.array(ids), "entropy": np.arange(8.0), "unknown": np.zeros(8)}
    columns["logp_train"] = columns["logp_train"].astype(np.float64) - 0.1
    table = table_of(rows(reader(kind), write(kind, tmp_path, columns)))
    assert table.sample_ids == tuple(dict.fromkeys(map(str, ids)))
    np.testing.assert_array_equal(table.training, columns["logp_train"])
    np.testing.assert_array_equal(table.rollout, columns["logp_rollout"])
    assert (table.training.dtype, table.rollout.dtype) == (np.float64, np.float32)
    assert table.columns["entropy"].tolist() == list(range(8)) and set(table.columns) == {"entropy"}


@pytest.mark.parametrize("kind", KINDS)
def test_one_side_is_read(layouts, rows, tmp_path, kind):
    columns = layouts.canonical()
    del columns["logp_train"]
    assert rows(reader(kind), write(kind, tmp_path, columns)).sides == ("rollout",)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.pop("token_id"), "token_id"),
        (lambda c: c.update(active=c["active"].astype(np.int64)), "not boolean"),
        (lambda c: c.update(position=c["position"].astype(float)), "not integer"),
        (lambda c: c.update(logp_train=c["logp_train"].astype(np.float16)), "not float32 or float64"),
        (lambda c: c.update(position=np.zeros(8, dtype=np.int64)), "duplicate rows"),
        (lambda c: c["logp_train"].__setitem__(2, np.nan), "logp_train is nan on 1 active tokens"),
        (lambda c: c.update({name: values[:0] for name, values in c.items()}), "is empty"),
    ],
)
def test_columns_that_are_not_canonical_are_refused(layouts, rows, tmp_path, kind, change, says):
    columns = layouts.canonical()
    change(columns)
    with pytest.raises(ArtifactError) as caught:
        rows(reader(kind), write(kind, tmp_path, columns))
    assert says in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_file_is_refused(layouts, rows, tmp_path, kind):
    path = write(kind, tmp_path, layouts.canonical())
    whole = path.read_bytes()
    for size in range(0, len(whole), max(1, len(whole) // 23)):
        path.write_bytes(whole[:size])
        with pytest.raises(ArtifactError):
            rows(reader(kind), path)


@pytest.mark.parametrize("kind", KINDS)
def test_slices_equal_the_whole(layouts, rows, tmp_path, kind, monkeypatch):
    from xcfg_dumps import npz
    from xcfg_dumps import parquet as module

    path = write(kind, tmp_path, layouts.canonical())
    whole = rows(reader(kind), path)
    for item in (npz, module):
        monkeypatch.setattr(item, "ROWS", 3)
    parts = rows(reader(kind), path)
    for name in whole.columns:
        np.testing.assert_array_equal(parts.columns[name], whole.columns[name])


def test_lengths_that_differ_are_refused(layouts, rows, tmp_path):
    columns = layouts.canonical()
    columns["position"] = columns["position"][:-1]
    with pytest.raises(ArtifactError, match="not of one length"):
        rows("npz", write("npz", tmp_path, columns))


def npy(header, body=b""):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}"), "claims 1000000000000 values"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (8,)}", pickle.dumps([1] * 8)), "Python objects"),
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': (2, 4)}", bytes(64)), "not of one length"),
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': ()}", bytes(8)), "not of one length"),
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}"), "a header that numpy"),
        (npy("{'descr': '<U9999999', 'fortran_order': False, 'shape': (0,)}"), "claims 0 values"),
        (npy("__import__('os').system('true')"), "a header that numpy does not write"),
        (npy("{" * 5000), "a header that numpy does not write"),
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': (9" + "9" * 5000 + ",)}"), "a header that numpy"),
        (b"\x93NUMPY\x01\x00", "a header that numpy does not write"),
        (b"\x93NUMPY\x09\x00", "no .npy array of format 1 to 3"),
        (b"\x80\x04N.", "no .npy array"),
        (b"", "no .npy array"),
    ],
)
def test_a_hostile_member_is_refused_and_not_run(layouts, rows, tmp_path, member, says):
    columns = layouts.canonical()
    path = tmp_path / "dump.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in columns.items():
            buffer = io.BytesIO()
            np.save(buffer, values)
            archive.writestr(f"{name}.npy", member if name == "position" else buffer.getvalue())
    with pytest.raises(ArtifactError) as caught:
        rows("npz", path)
    assert says in str(caught.value)


def test_completions_of_trl_are_refused_with_what_to_export(rows, tmp_path):
    path = tmp_path / "completions_00010.parquet"
    columns = {"step": [1], "prompt": ["a"], "completion": ["b"], "accuracy_reward": [1.0], "advantage": [0.5]}
    parquet.write_table(arrow.table(columns), path)
    with pytest.raises(ArtifactError, match=r"holds text only \(TRL completions") as caught:
        rows("parquet", path)
    assert "xcfg_dumps.capture" in caught.value.hint


def test_other_parquet_files_say_what_they_hold(rows, tmp_path):
    parquet.write_table(arrow.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(ArtifactError, match=r"has no column 'active', .*; there are x"):
        rows("parquet", tmp_path / "x.parquet")


def test_null_is_nan_in_a_score_and_a_fault_elsewhere(layouts, rows, tmp_path):
    columns = {name: values.tolist() for name, values in layouts.canonical().items()}
    columns["logp_train"][0] = None
    assert np.isnan(rows("parquet", write("parquet", tmp_path, columns)).columns["logp_train"][0])
    columns["token_id"][0] = None
    with pytest.raises(ArtifactError, match="'token_id' has 1 nulls"):
        rows("parquet", write("parquet", tmp_path, columns))


def test_without_pyarrow_the_command_that_installs_it_is_named(layouts, rows, tmp_path, monkeypatch):
    import sys

    path = write("parquet", tmp_path, layouts.canonical())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError) as caught:
        rows("parquet", path)
    assert "pip install 'xcfg-dumps[parquet]'" in caught.value.hint

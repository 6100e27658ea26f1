"""`.pt` files: every bit comes back, and nothing but columns and plain metadata goes in or out."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xcfg.artifacts import tensors
from xcfg.artifacts.tensors import DTYPES, load_pt, save_pt
from xcfg.errors import ArtifactError

GOLDEN = Path(__file__).parent / "golden" / "columns.pt"


def trip(path: Path, columns, meta):
    path.write_bytes(save_pt(columns, meta))
    return load_pt(path)


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@settings(max_examples=60)
@given(
    dtype=st.sampled_from([name for name in DTYPES if name != "bool"]),
    data=st.binary(max_size=96),
    wide=st.booleans(),
)
def test_any_bit_pattern_comes_back(tmp_path_factory, dtype, data, wide):
    item = np.dtype(dtype).itemsize
    array = np.frombuffer(data[: len(data) // item * item], dtype=dtype)
    array = array.reshape(-1, 1) if wide else array
    columns, meta = trip(tmp_path_factory.getbasetemp() / "any.pt", {"x": array}, {})
    assert same_bits(columns["x"], array) and meta == {}


@pytest.mark.parametrize("threshold", [0, 1 << 40], ids=["mapped", "read"])
def test_special_values_of_every_dtype(tmp_path, monkeypatch, threshold):
    monkeypatch.setattr(tensors, "MMAP_FROM", threshold)
    nan32 = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x7F800000, 0x80000000, 1], np.uint32).view(np.float32)
    nan64 = np.array([0x7FF8000000000001, 0xFFF4000000000ABC, 0x7FF0000000000000, 1 << 63, 1], np.uint64).view(
        np.float64
    )
    columns = {
        "f32": nan32,
        "f64": nan64,
        "flag": np.array([True, False, True]),
        "i8": np.array([-128, 127], np.int8),
        "i16": np.arange(24, dtype=np.int16).reshape(2, 3, 4),
        "i32": np.array(7, np.int32),
        "i64": np.array([-(2**63), 2**63 - 1]),
        "none": np.zeros((0, 3), np.float32),
        "strided": np.arange(10, dtype=np.float64)[::-3],
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    }
    meta = {"arm": "training", "n": 2**70, "x": [1.5, None, True, {"y": "é"}], "t": (1, 2)}
    back, facts = trip(tmp_path / "a.pt", columns, meta)
    assert list(back) == list(columns)
    for name, array in columns.items():
        assert same_bits(back[name], array), name
        assert not back[name].flags.writeable
    assert facts == meta | {"t": [1, 2]}


def test_equal_input_gives_equal_bytes():
    columns = {"x": np.arange(5.0)}
    assert save_pt(columns, {"a": 1}) == save_pt({"x": columns["x"].copy()}, {"a": 1})


def test_any_torch_user_can_read_it(tmp_path):
    (tmp_path / "a.pt").write_bytes(save_pt({"x": np.arange(3, dtype=np.float32)}, {"arm": "training"}))
    document = torch.load(tmp_path / "a.pt", weights_only=True)
    assert document["columns"]["x"].tolist() == [0.0, 1.0, 2.0]
    assert document["meta"] == {"arm": "training"}


def test_a_golden_file_still_decodes():
    columns, meta = load_pt(GOLDEN)
    assert meta == {"arm": "training", "tokens": 3}
    assert same_bits(columns["selected_logprob"], np.array([np.nan, -0.5, -1.25], np.float32))
    assert same_bits(columns["active"], np.array([False, True, True]))


@pytest.mark.parametrize(
    "array",
    [np.zeros(2, np.float16), np.zeros(2, np.uint8), np.zeros(2, complex), np.array(["a"]),
     np.array([object()]), np.zeros(2, ">f4"), np.zeros(2, "datetime64[s]")],
    ids=lambda array: str(array.dtype),
)  # fmt: skip
def test_other_dtypes_are_refused(array):
    with pytest.raises(ArtifactError, match="'x'"):
        save_pt({"x": array}, {})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1: 2}, b"x", {"a": {1, 2}}, np.float32(1)])
def test_other_metadata_is_refused(value):
    with pytest.raises(ArtifactError, match="meta"):
        save_pt({}, {"k": value})


def test_column_names_are_identifiers():
    for name in ("", "a b", "a/b", "../x"):
        with pytest.raises(ArtifactError, match="identifier"):
            save_pt({name: np.zeros(1)}, {})


# --- hostile files -------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch '{self.canary}'",)


def archive(data: bytes, **more: bytes) -> bytes:
    """A zip as torch writes it around the pickle `data`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name, content in {"data.pkl": data, "byteorder": b"little", "version": b"3\n", **more}.items():
            target.writestr(f"archive/{name}", content)
    return buffer.getvalue()


def refused(path: Path, data: bytes, match: str) -> None:
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=match):
        load_pt(path)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_bomb_does_not_go_off(tmp_path, protocol):
    canary = tmp_path / "canary"
    document = {"schema_version": "xcfg.tensors.v1", "columns": {}, "meta": {"x": Bomb(canary)}}
    bomb = pickle.dumps(document, protocol)
    refused(tmp_path / "zip.pt", archive(bomb), "global|opcode")
    refused(tmp_path / "bare.pt", bomb, "no .pt archive")
    torch.save(document, tmp_path / "torch.pt")
    refused(tmp_path / "torch.pt", (tmp_path / "torch.pt").read_bytes(), "global 'posix system'")
    torch.save(document, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    refused(tmp_path / "legacy.pt", (tmp_path / "legacy.pt").read_bytes(), "no .pt archive")
    assert not canary.exists()
    # The bomb is live: what plain unpickling would have done.
    pickle.loads(bomb)
    assert canary.exists()


@pytest.mark.parametrize(
    "value",
    [
        torch.nn.Parameter(torch.zeros(2)),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, dtype=torch.bfloat16),
        torch.zeros(2, dtype=torch.uint8),
        torch.eye(2).to_sparse(),
        torch.zeros(3).expand(2, 3),
        torch.zeros(2, 3).T,
        torch.zeros(2, requires_grad=True),
        OrderedDict(a=1),
        [1, 2],
        torch.float32,
        torch.zeros(1).untyped_storage(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_torch_would_load_but_is_no_column_is_refused(tmp_path, value):
    buffer = io.BytesIO()
    torch.save({"schema_version": "xcfg.tensors.v1", "columns": {"x": value}, "meta": {}}, buffer)
    refused(tmp_path / "x.pt", buffer.getvalue(), "x.pt")


@pytest.mark.parametrize(
    "document",
    [
        {}, [], 7, {"columns": {}, "meta": {}},
        {"schema_version": "xcfg.tensors.v1", "columns": [], "meta": {}},
        {"schema_version": "xcfg.tensors.v2", "columns": {}, "meta": {}},
        {"schema_version": "xcfg.tensors.v1", "columns": {}, "meta": {}, "more": 1},
        {"schema_version": "xcfg.tensors.v1", "columns": {7: torch.zeros(1)}, "meta": {}},
        {"schema_version": "xcfg.tensors.v1", "columns": {}, "meta": {"x": torch.zeros(1)}},
        {"schema_version": "xcfg.tensors.v1", "columns": {}, "meta": {"x": float("nan")}},
    ],
)  # fmt: skip
def test_another_shape_of_document_is_refused(tmp_path, document):
    buffer = io.BytesIO()
    torch.save(document, buffer)
    refused(tmp_path / "x.pt", buffer.getvalue(), "columns|schema_version|identifier|meta")


def test_odd_archives_are_refused_before_torch_sees_them(tmp_path, monkeypatch):
    good = pickle.dumps({"schema_version": "xcfg.tensors.v1", "columns": {}, "meta": {}}, 2)
    (tmp_path / "good.pt").write_bytes(archive(good))
    assert load_pt(tmp_path / "good.pt") == ({}, {})
    monkeypatch.setattr(torch, "load", None)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("archive/data.pkl", good)
    refused(tmp_path / "packed.pt", packed.getvalue(), "compressed")
    refused(tmp_path / "script.pt", archive(good, **{"constants.pkl": good}), "constants.pkl")
    refused(tmp_path / "upper.pt", archive(good, **{"DATA.PKL": good}), "DATA.PKL")
    refused(tmp_path / "path.pt", archive(good, **{"../../x": good}), "x")
    refused(tmp_path / "none.pt", archive(good).replace(b"data.pkl", b"data/999"), "no archive of tensors")
    refused(tmp_path / "empty.pt", b"", "no .pt archive")
    refused(tmp_path / "tail.pt", archive(good)[:-1], "no .pt archive")
    monkeypatch.setattr(tensors, "MAX_PICKLE", 10)
    refused(tmp_path / "long.pt", archive(good), "more than 10")


def test_every_truncation_and_many_flips_end_in_an_error_or_in_the_same_names(tmp_path):
    data = save_pt({"x": np.arange(4, dtype=np.float32)}, {"a": 1})
    path = tmp_path / "x.pt"
    for length in range(0, len(data), 37):
        refused(path, data[:length], "x.pt")
    for index in range(0, len(data), 5):
        changed = bytearray(data)
        changed[index] ^= 0x41
        path.write_bytes(bytes(changed))
        with pytest.raises(ArtifactError, match="altered"):
            load_pt(path, sha256=hashlib.sha256(data).hexdigest())
        try:
            load_pt(path)
        except ArtifactError:
            continue


@pytest.mark.timeout(20)
def test_links_and_fifos_are_not_opened(tmp_path):
    (tmp_path / "a.pt").write_bytes(save_pt({}, {}))
    (tmp_path / "l.pt").symlink_to(tmp_path / "a.pt")
    os.mkfifo(tmp_path / "f.pt")
    for name in ("l.pt", "f.pt", "absent.pt"):
        with pytest.raises(ArtifactError, match=name):
            load_pt(tmp_path / name)


def test_a_stored_payload_is_checked_when_it_is_read(run, sample, tmp_path):
    data = save_pt({"x": np.arange(3.0)}, {"arm": "training"})
    score = run.put_score(sample.score_facts("real", "training"), sample.score_files("t") | {"score.pt": data})
    columns, meta = score.tensors("score.pt")
    assert columns["x"].tolist() == [0.0, 1.0, 2.0] and meta == {"arm": "training"}
    other = save_pt({"x": np.arange(3.0) + 1}, {"arm": "training"})
    score.score.chmod(0o644)
    score.score.write_bytes(other)
    with pytest.raises(ArtifactError, match="altered"):
        score.tensors("score.pt")
    with pytest.raises(ArtifactError, match="altered"):
        score.tensors("absent.pt") if (score.path / "absent.pt").exists() else score.tensors("score.pt")

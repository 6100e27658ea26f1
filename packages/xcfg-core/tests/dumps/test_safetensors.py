"""Canonical safetensors: slices, attested dtypes, and files that only look like one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from xcfg.dumps import SafetensorsReader, read_table
from xcfg.dumps import tensors as module
from xcfg.errors import ArtifactError
from xcfg.plugin.protocols import DumpReader

READER = SafetensorsReader()
ATTESTED = {"compute_dtype.training": "bfloat16", "compute_dtype.rollout": "float16", "note": "x"}


def test_it_is_a_dump_reader() -> None:
    assert isinstance(READER, DumpReader)


def test_stored_values_and_dtypes_are_kept(tensors: Any, columns: Any) -> None:
    table = read_table(READER, tensors({**columns, "entropy": np.arange(5.0), "unknown": np.zeros(3)}))
    assert table.training.dtype == np.float32
    np.testing.assert_array_equal(table.training, columns["logp_train"])
    assert table.sample_ids == ("7", "3")
    assert table.offsets.tolist() == [0, 3, 5]
    assert table.columns["entropy"].tolist() == [0, 1, 2, 3, 4]
    assert set(table.columns) == {"entropy"}
    assert table.dtypes == {}
    assert "compute_dtype.training" in table.unattested and "compute_dtype.rollout" in table.unattested


def test_metadata_attests_to_compute_dtypes(tensors: Any, columns: Any) -> None:
    table = read_table(READER, tensors(columns, ATTESTED))
    assert table.dtypes == {"training": "bfloat16", "rollout": "float16"}
    assert "compute_dtype.training" not in table.unattested
    half = read_table(READER, tensors(columns, {"compute_dtype.training": "bfloat16", "compute_dtype.rollout": ""}))
    assert half.dtypes == {"training": "bfloat16"}


def test_slices_equal_the_whole(tensors: Any, columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tensors(columns)
    monkeypatch.setattr(module, "ROWS", 2)
    assert [len(batch["position"]) for batch in READER.read(path)] == [2, 2, 1]
    np.testing.assert_array_equal(read_table(READER, path).rollout, columns["logp_rollout"])


def test_detect(tensors: Any, columns: Any, tmp_path: Path) -> None:
    assert READER.detect(tensors(columns))
    assert READER.detect(tensors({"weight": np.zeros(3)})) == ""
    (tmp_path / "junk").write_bytes(b"junk" * 100)
    assert READER.detect(tmp_path / "junk") == ""
    assert READER.detect(tmp_path / "absent") == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("active"), "no column 'active'"),
        (lambda c: c.update(position=c["position"][:-1]), "not of one length"),
        (lambda c: c.update(position=c["position"].reshape(5, 1)), "not of one length"),
        (lambda c: c.update({name: values.reshape(5, 1) for name, values in c.items()}), "not of one length"),
        (lambda c: c.update({name: values[:0] for name, values in c.items()}), "is empty"),
        (lambda c: c.update(logp_train=c["logp_train"].astype(np.float16)), "float16, not float32 or float64"),
        (lambda c: c.update(logp_train=np.zeros(5, dtype=np.int64)), "not float32 or float64"),
        (lambda c: c.update(active=c["active"].astype(np.uint8)), "not boolean"),
        (lambda c: c.update(position=c["position"].astype(np.float32)), "not integer"),
        (lambda c: c.update(sample_id=c["sample_id"].astype(np.float64)), "not integer or text"),
        (lambda c: c["logp_train"].__setitem__(1, np.nan), "logp_train is nan on 1 active tokens"),
        (lambda c: c["logp_rollout"].__setitem__(4, -np.inf), "sample '3', position 1"),
        (lambda c: c["position"].__setitem__(2, 1), "duplicate rows"),
        (lambda c: c["active"].__setitem__(3, True), "logp_rollout is nan"),
        (lambda c: c.update(rank=np.full(5, 40_000)), "out of range"),
        (lambda c: c["token_id"].__setitem__(0, -1), "out of range"),
    ],
)
def test_a_malformed_dump_is_refused(tensors: Any, columns: Any, change: Any, message: str) -> None:
    change(columns)
    with pytest.raises(ArtifactError) as caught:
        read_table(READER, tensors(columns))
    assert message in str(caught.value)


def raw(header: bytes, body: bytes = b"", size: int | None = None) -> bytes:
    return (len(header) if size is None else size).to_bytes(8, "little") + header + body


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no safetensors file"),
        (b"1234567", "no safetensors file"),
        (raw(b"{}", size=2**62), "does not fit"),
        (raw(b" " * (2**20 + 1)), "more than 1048576"),
        (raw(b"not json......"), "no safetensors file"),
        (raw(json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}}).encode()), "no safetensors"),
        (raw(json.dumps({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}).encode(), b"0000"), "no safet"),
        (raw(b"[" * 5000), "no safetensors file"),
        (raw(b"{}"), "no column"),
        (b"\x80\x04\x95" + b"cposix\nsystem\n" * 20, "does not fit"),
    ],
)
def test_a_file_that_only_looks_like_one(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(ArtifactError) as caught:
        read_table(READER, path)
    assert message in str(caught.value)


def test_bfloat16_scores_are_refused_with_a_cure(tmp_path: Path, columns: Any) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    stored = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in columns.items()}
    stored["logp_train"] = stored["logp_train"].to(torch.bfloat16)
    save_file(stored, tmp_path / "bf16.safetensors")
    with pytest.raises(ArtifactError, match="stored as BF16") as caught:
        read_table(READER, tmp_path / "bf16.safetensors")
    assert "F32 or F64" in caught.value.hint


def test_no_mapping_outlives_its_batch(tensors: Any, columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Failing means that the pages of the whole file stand in memory beside the rows."""
    open_now, opened = [0], [0]

    class Counted:
        def __init__(self, *given: Any, **more: Any) -> None:
            self.file = safe_open(*given, **more)

        def __enter__(self) -> Any:
            open_now[0] += 1
            opened[0] += 1
            return self.file.__enter__()

        def __exit__(self, *error: Any) -> None:
            open_now[0] -= 1
            self.file.__exit__(*error)

    monkeypatch.setattr(module, "safe_open", Counted)
    monkeypatch.setattr(module, "ROWS", 2)
    found = []
    for batch in SafetensorsReader().read(tensors(columns)):
        assert open_now == [0]
        found.append(batch["token_id"])
    assert [len(part) for part in found] == [2, 2, 1] and opened == [4]
    np.testing.assert_array_equal(np.concatenate(found), columns["token_id"])

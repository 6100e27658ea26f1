"""Canonical JSONL: what it reads, and that nothing malformed is read as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xcfg.dumps import JsonlReader, read_table
from xcfg.dumps import jsonl as module
from xcfg.errors import ArtifactError
from xcfg.plugin.builtin.readers import CANONICAL_READERS
from xcfg.plugin.protocols import DumpReader


def test_it_is_a_dump_reader_that_core_declares() -> None:
    assert isinstance(JsonlReader(), DumpReader)
    names = {item.name: item.factory for item in CANONICAL_READERS}
    assert names == {"jsonl": "xcfg.dumps.jsonl:JsonlReader", "safetensors": "xcfg.dumps.tensors:SafetensorsReader"}


def test_detect_looks_at_the_first_line_only(jsonl: Any, rows: Any, tmp_path: Path) -> None:
    reader = JsonlReader()
    assert reader.detect(jsonl(rows))
    assert reader.detect(jsonl(json.dumps(rows[0]) + "\ngarbage"))
    for other in ("", "garbage", "[1]\n", '{"prompt": "x"}\n', "[" * 10_000, "x" * 100_000, b"\xff\xfe"):
        assert reader.detect(jsonl(other)) == ""
    assert reader.detect(tmp_path / "absent") == ""
    assert reader.detect(tmp_path) == ""


def test_rows_become_columns_in_file_order(jsonl: Any, rows: Any) -> None:
    (batch,) = JsonlReader().read(jsonl([{**row, "rank": 1, "extra": [1, {"a": 2}]} for row in rows]))
    assert batch["sample_id"].tolist() == ["b", "a", "b", "a", "b", "a"]
    assert batch["position"].tolist() == [2, 4, 0, 6, 1, 5]
    assert batch["active"].dtype == np.bool_
    assert batch["logp_train"].dtype == np.float64 and np.isnan(batch["logp_train"][2])
    assert batch["rank"].tolist() == [1] * 6
    assert "extra" not in batch


def test_batches_are_bounded_and_equal_one_batch(jsonl: Any, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = jsonl(rows)
    whole = read_table(JsonlReader(), path)
    monkeypatch.setattr(module, "ROWS", 2)
    assert [len(batch["position"]) for batch in JsonlReader().read(path)] == [2, 2, 2]
    parts = read_table(JsonlReader(), path)
    assert parts.sample_ids == whole.sample_ids
    np.testing.assert_array_equal(parts.training, whole.training)


@pytest.mark.parametrize("last", ["", "\n"])
def test_the_final_newline_is_optional(jsonl: Any, rows: Any, last: str) -> None:
    assert read_table(JsonlReader(), jsonl("\n".join(map(json.dumps, rows)) + last)).rows == 6


def line(**changes: Any) -> str:
    row = {"sample_id": "s", "position": 1, "token_id": 2, "active": True, "logp_rollout": -1.0, "logp_train": -1.0}
    return json.dumps({**row, **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n", "line 1"),
        (line() + "\n\n" + line(position=2), "line 2"),
        ("[1, 2]\n", "no JSON object"),
        ("nonsense\n", "not JSON"),
        (line() + "\n" + line(position=2)[:-4], "line 2"),
        ('{"sample_id": "s"}\n', "has no column 'active'"),
        (line().replace("logp_train", "train_logp"), "'logp_train'"),
        (line() + "\n" + line(position=2, rank=1), "other columns than line 1: 'rank'"),
        (line(active=1), "active is 1"),
        (line(active=None), "active is None"),
        (line(position=1.0), "position is 1.0"),
        (line(position=True), "position is True"),
        (line(position=-1), "out of range"),
        (line(token_id=-5), "out of range"),
        (line(token_id=2**40), "out of range"),
        (line(token_id=10**30), "token_id is 1000"),
        (line(logp_train="-1.0"), "logp_train is '-1.0'"),
        (line(logp_train=[-1.0]), "logp_train is [-1.0]"),
        (line(logp_rollout={"a": 1}), "logp_rollout is {'a': 1}"),
        (line(logp_train=None), "logp_train is nan on 1 active tokens"),
        (line(logp_train=float("nan")), "NaN is not JSON"),
        (line(logp_train=float("-inf")), "Infinity"),
        (line(sample_id=""), "sample_id is ''"),
        (line(sample_id=None), "sample_id is None"),
        (line(sample_id=[1]), "sample_id is [1]"),
        (line() + "\n" + line(sample_id=3), "text in some rows and an integer in others"),
        (line() + "\n" + line(), "duplicate rows, the first for sample 's', position 1"),
        (line(position=0), "position 0 of sample 's' is active"),
        ('{"a": 1, "a": 2}\n', "'a' stands twice"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}\n", "nested too deeply"),
        ('{"a": ' + "[" * 30_000 + "}\n", "line 1"),
        ('{"a": "' + "x" * 70_000 + '"}\n', "longer than 65536 bytes"),
        (line(sample_id="s").replace('"s"', '"\\ud800"'), "not valid Unicode"),
        (line().replace("-1.0", "-1e999"), "line 1"),
        (b"\xff\xfe\x00\x01\n", "not UTF-8"),
        ('{"sample_id": 1' + "0" * 5000 + "}", "line 1"),
    ],
)
def test_malformed_files_are_refused_with_the_line(jsonl: Any, text: Any, message: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        read_table(JsonlReader(), jsonl(text))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_missing_file_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_table(JsonlReader(), tmp_path / "absent.jsonl")

"""From a dump to a comparison: order, joins, and that a dump without an attested dtype is never judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xcfg.comparison import CompareOutcome, ScoreTable, compare
from xcfg.contract import load_contract
from xcfg.dumps import DumpTable, JsonlReader, SafetensorsReader, collect, read_table
from xcfg.errors import ArtifactError
from xcfg.identity.rollout import Rollout


def judge(table: DumpTable) -> CompareOutcome:
    """What the dump journey does with a table."""
    tables = {
        arm: ScoreTable(
            arm=arm, compute_dtype=table.dtypes.get(side, ""), logprob=values, active=table.active, owner_rank=rank
        )
        for arm, side, values, rank in (
            ("training", "training", table.training, table.rank),
            ("recorded", "rollout", table.rollout, None),
        )
    }
    return compare(tables, table.as_rollout(), load_contract(), verdict_arm="recorded")


def test_rows_are_sorted_by_appearance_and_position(jsonl: Any, rows: Any) -> None:
    table = read_table(JsonlReader(), jsonl(rows))
    assert table.sample_ids == ("b", "a")
    assert table.offsets.tolist() == [0, 3, 6]
    assert table.positions.tolist() == [0, 1, 2, 4, 5, 6]
    assert table.token_ids.tolist() == [10, 11, 12, 24, 25, 26]
    assert table.active.tolist() == [False, True, True, True, True, False]
    np.testing.assert_array_equal(table.rollout, [np.nan, -2.0, -1.5, -0.5, -0.25, -9.0])
    assert table.rank is None and "rank" in table.unattested and "weights" in table.unattested


def test_without_attested_dtypes_there_are_figures_and_no_verdict(jsonl: Any, rows: Any) -> None:
    comparison = judge(read_table(JsonlReader(), jsonl(rows))).comparison
    assert comparison.status == "UNOBSERVABLE"
    assert "compute dtype of training and recorded" in comparison.reason
    edge = comparison.edges["training_vs_rollout"]
    assert (edge.active_tokens, edge.max_abs, edge.comparable, edge.mismatch_ratio) == (4, 0.5, False, None)
    assert [(item.sequence, item.position, item.token_id) for item in edge.worst[:2]] == [(1, 5, 25), (0, 2, 12)]
    assert comparison.assessment.assessment == "NO_REFERENCE"


@pytest.mark.parametrize(("gap", "status"), [(0.25, "MISMATCH"), (0.0, "PASS")])
def test_with_attested_dtypes_it_is_judged(tensors: Any, columns: Any, gap: float, status: str) -> None:
    columns["logp_train"] = columns["logp_rollout"] - np.float32(gap)
    metadata = {"compute_dtype.training": "bfloat16", "compute_dtype.rollout": "bfloat16"}
    comparison = judge(read_table(SafetensorsReader(), tensors(columns, metadata))).comparison
    assert (comparison.status, comparison.threshold) == (status, 6e-2)
    half = judge(read_table(SafetensorsReader(), tensors(columns, {"compute_dtype.training": "bfloat16"})))
    assert half.comparison.status == "UNOBSERVABLE"


def test_no_rows_is_an_empty_join_and_never_a_pass() -> None:
    table = collect([])
    assert table.rows == 0 and table.as_rollout().sequence_count == 0
    comparison = judge(table).comparison
    assert (comparison.status, comparison.edges) == ("EMPTY_JOIN", {})
    assert "no token in common" in comparison.reason


def test_no_active_rows(columns: Any) -> None:
    columns["active"][:] = False
    assert judge(collect([columns])).comparison.status == "ZERO_ACTIVE_TOKENS"


def test_batches_may_split_a_sequence_and_be_lists(columns: Any) -> None:
    whole = collect([columns])
    parts = [{name: values[part].tolist() for name, values in columns.items()} for part in (slice(0, 2), slice(2, 5))]
    split = collect(parts)
    assert split.sample_ids == whole.sample_ids
    np.testing.assert_array_equal(split.positions, whole.positions)
    np.testing.assert_array_equal(split.training, whole.training)
    assert split.as_rollout().sha256 == whole.as_rollout().sha256


def test_duplicates_across_batches_are_found(columns: Any) -> None:
    with pytest.raises(ArtifactError, match="5 duplicate rows"):
        collect([columns, columns])


def test_batches_with_other_columns(columns: Any) -> None:
    other = {**columns, "sample_id": columns["sample_id"] + 100, "rank": np.zeros(5, dtype=np.int64)}
    with pytest.raises(ArtifactError, match="rank"):
        collect([columns, other])


def test_a_batch_whose_columns_differ_in_length(columns: Any) -> None:
    with pytest.raises(ArtifactError, match="not of one length"):
        collect([{**columns, "token_id": columns["token_id"][:-1]}])


def test_optional_columns_reach_the_table(columns: Any) -> None:
    extra = {"rank": [0, 1, 0, 1, 1], "weight_version": [3] * 5, "token_rank": [1] * 5, "source": ["x"] * 5}
    table = collect([{**columns, **{name: np.array(values) for name, values in extra.items()}}])
    assert table.rank is not None and table.rank.dtype == np.int16
    assert table.weight_version.tolist() == [3] * 5
    assert set(table.columns) == {"token_rank"}
    edge = judge(table).comparison.edges["training_vs_rollout"]
    assert [(item.group, item.active_tokens) for item in edge.by_rank] == [("training:0", 1), ("training:1", 2)]


def test_the_rollout_holds_what_the_dump_says(columns: Any) -> None:
    rollout: Rollout = collect([columns]).as_rollout()
    assert [(item.request_id, item.length, item.active_tokens) for item in rollout.manifest.sequences] == [
        ("7", 3, 2),
        ("3", 2, 1),
    ]
    assert (rollout.manifest.token_count, rollout.manifest.active_count) == (5, 3)
    assert rollout.manifest.checkpoint.uri == ""
    assert rollout.tensors["segment"].tolist() == [0, 1, 1, 0, 1]
    changed = dict(columns, token_id=columns["token_id"] + 1)
    assert collect([changed]).as_rollout().sha256 != rollout.sha256

"""A foreign dump is judged as far as it attests, and what it does not attest to is never supplied."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from xcfg.dumps import DumpTable, collect
from xcfg.errors import ArtifactError, UnknownNameError
from xcfg.flow.compare import compare_dump, judge_dump

TRAINING = np.array([np.nan, -1.0, -2.0, np.nan, -3.0], dtype=np.float32)
BOTH = {"compute_dtype.training": "bfloat16", "compute_dtype.rollout": "bfloat16"}


@pytest.fixture
def dump(tmp_path):
    """dump(gap=0.25, active=..., metadata=...): two sequences of three and two tokens as safetensors."""

    def write(gap=0.0, *, active=(0, 1, 1, 0, 1), metadata=None, **columns):
        base = {
            "sample_id": np.array([7, 7, 7, 3, 3]),
            "position": np.array([0, 1, 2, 0, 1]),
            "token_id": np.array([1, 2, 3, 4, 5]),
            "active": np.array(active, dtype=np.bool_),
            "logp_train": TRAINING,
            "logp_rollout": TRAINING - np.array([0, 0, gap, 0, 0], dtype=np.float32),
        }
        file = tmp_path / "dump.safetensors"
        save_file(base | columns, file, metadata=metadata)
        return file

    return write


@pytest.fixture
def jsonl(tmp_path):
    def write(rows):
        file = tmp_path / "dump.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file

    return write


ROW = {"sample_id": "a", "position": 1, "token_id": 9, "active": True, "logp_train": -1.0, "logp_rollout": -1.5}


@pytest.mark.parametrize(
    ("dtypes", "status", "code"),
    [
        (("bfloat16", "bfloat16"), "PASS", 0),
        (("float32", "float32"), "PASS", 0),
        (("float32", "bfloat16"), "PASS", 0),
        (("float64", "float32"), "PASS", 0),
        (("bfloat16", ""), "UNOBSERVABLE", 3),
        (("", "bfloat16"), "UNOBSERVABLE", 3),
        (("", ""), "UNOBSERVABLE", 3),
        (("float8_e4m3fn", "bfloat16"), "NOT_COMPARABLE", 3),
        (("int8", "int8"), "NOT_COMPARABLE", 3),
        (("BF16", "bfloat16"), "NOT_COMPARABLE", 3),
    ],
)
def test_equal_values_pass_only_under_attested_dtypes_that_the_contract_knows(dtypes, status, code, dump, manager):
    metadata = {f"compute_dtype.{side}": name for side, name in zip(("training", "rollout"), dtypes, strict=True)}
    summary, comparison = compare_dump(dump(metadata=metadata), manager)
    assert (comparison.status, summary.exit_code) == (status, code)
    assert summary.cases[0].status == status


@pytest.mark.parametrize(("factor", "status", "code"), [(2.0, "MISMATCH", 1), (0.5, "PASS", 0)])
def test_attested_dtypes_are_judged_by_the_contract(factor, status, code, dump, manager, contract):
    gap = factor * contract.threshold("bfloat16", "bfloat16")
    summary, comparison = compare_dump(dump(gap, metadata=BOTH), manager)
    assert (comparison.status, summary.exit_code) == (status, code)
    edge = comparison.edges["training_vs_rollout"]
    stored = float(np.float64(TRAINING[2]) - np.float64(TRAINING[2] - np.float32(gap)))
    assert (edge.active_tokens, edge.max_abs, edge.mismatches) == (3, stored, int(code == 1))
    assert edge.worst[0].token_id == 3
    assert comparison.threshold == summary.cases[0].threshold == contract.threshold("bfloat16", "bfloat16")


def test_the_coarser_of_two_attested_dtypes_decides(dump, manager, contract):
    between = 2 * contract.threshold("float16", "float16")
    assert between < contract.threshold("bfloat16", "bfloat16")
    for other, status in (("bfloat16", "PASS"), ("float32", "MISMATCH")):
        metadata = {"compute_dtype.training": other, "compute_dtype.rollout": "float16"}
        assert compare_dump(dump(between, metadata=metadata), manager)[1].status == status


def test_without_dtypes_there_are_figures_and_no_verdict(jsonl, manager):
    rows = [{**ROW, "position": 0, "active": False}, ROW, {**ROW, "position": 2, "logp_train": -1.5}]
    summary, comparison = compare_dump(jsonl(rows), manager)
    assert (comparison.status, summary.exit_code, comparison.threshold) == ("UNOBSERVABLE", 3, None)
    edge = comparison.edges["training_vs_rollout"]
    assert (edge.active_tokens, edge.max_abs, edge.mean_abs, edge.bias) == (2, 0.5, 0.25, 0.25)
    assert summary.cases[0].edges["training_vs_rollout"].max_abs == 0.5
    assert not edge.comparable


def test_what_nobody_attests_to_is_listed(dump, manager):
    everything = compare_dump(dump(), manager)[1].unattested
    assert {"compute_dtype.training", "compute_dtype.rollout", "weights", "tokenizer", "transform_chain"} <= set(
        everything
    )
    attested = compare_dump(dump(metadata=BOTH), manager)[1].unattested
    assert set(everything) - set(attested) == {"compute_dtype.training", "compute_dtype.rollout"}


def test_a_dump_of_recorded_values_claims_neither_decode_nor_prefill(dump, manager):
    summary, comparison = compare_dump(dump(metadata=BOTH), manager)
    assert comparison.verdict_arm == "recorded"
    assert summary.runtimes == {"rollout": "dump", "training": "dump"}
    assert comparison.assessment.assessment == "NO_REFERENCE"


def test_no_active_token_is_no_pass(dump, manager):
    summary, comparison = compare_dump(dump(active=(0, 0, 0, 0, 0), metadata=BOTH), manager)
    assert (comparison.status, summary.exit_code) == ("ZERO_ACTIVE_TOKENS", 3)


def test_an_empty_join_is_no_pass(contract):
    table = collect([], dtypes={"training": "bfloat16", "rollout": "bfloat16"})
    assert isinstance(table, DumpTable) and table.rows == 0
    comparison = judge_dump(table, contract)
    assert comparison.status == "EMPTY_JOIN"
    assert comparison.edges == {}


@pytest.mark.parametrize(
    "change",
    [
        {"logp_train": np.array([np.nan, np.nan, -2, np.nan, -3], dtype=np.float32)},
        {"logp_rollout": np.array([np.nan, np.inf, -2, np.nan, -3], dtype=np.float32)},
        {"logp_rollout": np.array([0, -1, -2, 0, -3], dtype=np.float16)},
        {"position": np.array([0, 1, 1, 0, 1])},
        {"position": np.array([0, 0, 2, 1, 1])},
        {"token_id": np.array([1, 2, -3, 4, 5])},
        {name: np.array([0, 5, 5, 0, 5], dtype=np.float32) for name in ("logp_train", "logp_rollout")},
        {"logp_rollout": np.array([0, -1, 1.01, 0, -3], dtype=np.float32)},
    ],
)
def test_a_dump_that_is_not_canonical_is_refused_whatever_it_attests(change, dump, manager):
    with pytest.raises(ArtifactError):
        compare_dump(dump(metadata=BOTH, **change), manager)


@pytest.mark.parametrize("side", ["logp_train", "logp_rollout"])
@pytest.mark.parametrize("value", [0.0, -1.0, 0.25])
def test_a_side_of_one_value_is_a_placeholder_and_no_pass(side, value, jsonl, manager):
    """Failing means that two sides which nobody scored agree, and pass."""
    rows = [
        {**ROW, "position": 1 + index, "logp_train": -1.0 - index, "logp_rollout": -1.0 - index} for index in range(32)
    ]
    compare_dump(jsonl(rows), manager)
    constant = [{**row, side: value} for row in rows]
    with pytest.raises(ArtifactError, match=f"{side} is {value} on all 32 active tokens"):
        compare_dump(jsonl(constant), manager)
    compare_dump(jsonl(constant[:31]), manager)


def test_a_value_that_rounding_carried_above_0_is_read(dump, manager):
    values = np.array([0, 0.0078125, -2, 0, -3], dtype=np.float32)
    assert compare_dump(dump(metadata=BOTH, logp_train=values, logp_rollout=values), manager)[1].status == "PASS"


def test_nothing_from_a_dump_reaches_a_terminal_unescaped(dump, jsonl, manager):
    """Failing means that a dump from somebody else can move the cursor, or rewrite a verdict on the screen."""
    hostile = "\x1b[31mEVIL\x1b[2J\u202e"
    with pytest.raises(ArtifactError) as caught:
        compare_dump(dump(metadata={**BOTH, "compute_dtype.rollout": f"float32{hostile}"}), manager)
    assert "\x1b" not in str(caught.value)
    with pytest.raises(ArtifactError) as caught:
        compare_dump(jsonl([{**ROW, "sample_id": hostile, "logp_train": None}]), manager, reader="jsonl")
    assert "EVIL" in str(caught.value)
    assert "\x1b" not in str(caught.value) and "\u202e" not in str(caught.value)


def test_a_file_nobody_recognises_is_refused_with_the_formats(tmp_path, manager):
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(ArtifactError, match="no reader recognises") as error:
        compare_dump(tmp_path / "notes.txt", manager)
    assert "jsonl" in error.value.hint and "safetensors" in error.value.hint
    with pytest.raises(ArtifactError, match="does not exist"):
        compare_dump(tmp_path / "nowhere", manager)


def test_a_named_reader_is_used_even_where_another_would_do(dump, jsonl, manager):
    assert compare_dump(dump(metadata=BOTH), manager, reader="safetensors")[1].status == "PASS"
    with pytest.raises(ArtifactError):
        compare_dump(dump(), manager, reader="jsonl")
    with pytest.raises(UnknownNameError):
        compare_dump(jsonl([ROW]), manager, reader="json")


def test_the_summary_says_which_reader_and_why(dump, jsonl, manager):
    (case,) = compare_dump(dump(), manager)[0].cases
    assert (case.case_id, case.resumed) == ("dump-dump.safetensors", False)
    assert "safetensors" in case.label and "canonical columns" in case.label
    (case,) = compare_dump(jsonl([ROW]), manager, reader="jsonl")[0].cases
    assert "named on the command line" in case.label

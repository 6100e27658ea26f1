"""The only rule: what it flags, what equality does, what never passes. Wrong here means a false verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xcfg.comparison import CompareOutcome, ScoreTable, compare
from xcfg.contract import load_contract
from xcfg.errors import UnknownNameError
from xcfg.identity.rollout import Rollout
from xcfg.schema.codec import evolve
from xcfg.schema.contract import Contract

Judge = Callable[..., CompareOutcome]


def with_limit(contract: Contract, dtype: str, limit: float) -> Contract:
    """A contract with an exactly representable threshold, for tests of equality alone."""
    logprob = dict(contract.accuracy.default["logprob"])
    logprob[dtype] = evolve(logprob[dtype], atol=limit)
    default = {**contract.accuracy.default, "logprob": logprob}
    return evolve(contract, accuracy=evolve(contract.accuracy, default=default))


@pytest.mark.parametrize(
    ("gap", "status"),
    [
        (2.0**-5, "PASS"),
        (np.nextafter(2.0**-5, 1.0), "MISMATCH"),
        (-(2.0**-5), "PASS"),
        (-np.nextafter(2.0**-5, 1.0), "MISMATCH"),
        (0.0, "PASS"),
        (-0.0, "PASS"),
    ],
)
def test_equality_with_the_threshold_is_no_mismatch(
    rollout_of: Any, table_of: Any, contract: Contract, gap: float, status: str
) -> None:
    rollout = rollout_of([3])
    tables = {
        "training": table_of(rollout, "training", [gap, 0.0]),
        "rollout_decode": table_of(rollout, "rollout_decode", [0.0, -0.0]),
    }
    outcome = compare(tables, rollout, with_limit(contract, "bfloat16", 2.0**-5), verdict_arm="rollout_decode")
    assert outcome.comparison.status == status
    assert outcome.comparison.edges["training_vs_rollout"].mismatches == (status == "MISMATCH")


def test_the_difference_is_taken_in_float64_from_the_stored_values(judge: Judge) -> None:
    first, second = np.float32(-17.0), np.float32(-17.0) + np.float32(2e-6)
    edge = judge([first], [second], store=np.float32).comparison.edges["training_vs_rollout"]
    assert edge.max_abs == abs(float(first) - float(second))
    third = judge([1e-9], [-1.0], store=np.float32).comparison.edges["training_vs_rollout"]
    assert third.max_abs == float(np.float32(1e-9)) + 1.0, "the difference was rounded to float32"


@pytest.mark.parametrize(
    ("dtypes", "gap", "status"),
    [
        (("float32", "float32"), 2e-5, "MISMATCH"),
        (("float32", "float16"), 2e-5, "PASS"),
        (("float64", "float32"), 2e-5, "MISMATCH"),
        (("float16", "float16"), 6e-3, "MISMATCH"),
        (("float16", "bfloat16"), 6e-3, "PASS"),
        (("bfloat16", "float64"), 0.059, "PASS"),
        (("bfloat16", "float64"), 0.061, "MISMATCH"),
        (("bfloat16", ""), 0.0, "UNOBSERVABLE"),
        (("", ""), 9.0, "UNOBSERVABLE"),
        (("bfloat16", "fp8"), 0.0, "NOT_COMPARABLE"),
    ],
)
def test_mixed_dtypes_take_the_coarser_entry_or_none(
    judge: Judge, dtypes: tuple[str, str], gap: float, status: str
) -> None:
    outcome = judge([-1.0, -2.0], [-1.0 - gap, -2.0], dtypes=dtypes)
    edge = outcome.comparison.edges["training_vs_rollout"]
    assert outcome.comparison.status == edge.status == status
    assert edge.comparable == (status in ("PASS", "MISMATCH"))
    assert edge.active_tokens == 2
    assert edge.max_abs == pytest.approx(gap), "figures stand without a verdict"
    if not edge.comparable:
        assert (edge.mismatches, edge.mismatch_ratio, outcome.comparison.threshold) == (0, None, None)
        assert outcome.comparison.reason


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1, 2])
def test_a_score_that_is_not_finite_is_an_invalid_artifact(judge: Judge, bad: float, side: int) -> None:
    scores = [[-1.0, -2.0], [-1.0, -2.0]]
    for number in (0, 1):
        if side in (number, 2):
            scores[number][1] = bad
    outcome = judge(*scores)
    assert outcome.comparison.status == "INVALID_ARTIFACT"
    assert "flat index 2" in outcome.comparison.reason
    assert outcome.comparison.edges["training_vs_rollout"].max_abs is None
    assert outcome.comparison.assessment.assessment == "NO_REFERENCE"


def test_nan_outside_the_mask_is_no_fault(judge: Judge) -> None:
    outcome = judge([-1.0], [-1.0])
    assert np.isnan(outcome.token_diffs["training_vs_rollout.first"][0])
    assert outcome.comparison.status == "PASS"


def test_a_finite_difference_that_overflows_is_an_invalid_artifact(judge: Judge) -> None:
    assert judge([1.7e308], [-1.7e308]).comparison.status == "INVALID_ARTIFACT"
    assert judge([-1.7e308], [0.0]).comparison.status == "MISMATCH"


def test_zero_active_tokens_is_never_a_pass(rollout_of: Any, table_of: Any, contract: Contract) -> None:
    rollout = rollout_of([3], prompt=5)
    tables = {arm: table_of(rollout, arm, []) for arm in ("training", "rollout_decode")}
    outcome = compare(tables, rollout, contract, verdict_arm="rollout_decode")
    assert outcome.comparison.status == "ZERO_ACTIVE_TOKENS"
    assert outcome.comparison.edges["training_vs_rollout"].active_tokens == 0


def broken(table: ScoreTable, **changes: Any) -> ScoreTable:
    fields = {name: getattr(table, name) for name in table.__dataclass_fields__}
    return ScoreTable(**{**fields, **changes})


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {"logprob": t.logprob.astype(np.float16)},
        lambda t: {"logprob": np.nan_to_num(t.logprob).astype(np.int64)},
        lambda t: {"logprob": t.logprob[:-1]},
        lambda t: {"logprob": t.logprob.reshape(1, -1)},
        lambda t: {"active": t.active[:-1]},
        lambda t: {"active": t.active.astype(np.int8)},
        lambda t: {"active": ~t.active},
        lambda t: {"active": np.zeros_like(t.active)},
        lambda t: {"owner_rank": np.zeros(2, dtype=np.int16)},
        lambda t: {"columns": {"phase": np.zeros(2, dtype=np.int8)}},
    ],
)
@pytest.mark.parametrize("arm", ["training", "rollout_decode"])
def test_a_malformed_table_is_an_invalid_artifact(
    rollout_of: Any, table_of: Any, contract: Contract, change: Any, arm: str
) -> None:
    rollout = rollout_of([4])
    tables = {name: table_of(rollout, name, [-1.0] * 3) for name in ("training", "rollout_decode")}
    tables[arm] = broken(tables[arm], **change(tables[arm]))
    outcome = compare(tables, rollout, contract, verdict_arm="rollout_decode")
    assert outcome.comparison.status == "INVALID_ARTIFACT"
    assert arm in outcome.comparison.reason
    assert outcome.comparison.artifact_errors


def test_an_arm_that_is_missing_or_unknown(rollout_of: Any, table_of: Any, contract: Contract) -> None:
    rollout: Rollout = rollout_of([3])
    training = {"training": table_of(rollout, "training", [-1.0, -1.0])}
    assert compare(training, rollout, contract, verdict_arm="rollout_decode").comparison.status == "UNSUPPORTED"
    decode = {"rollout_decode": table_of(rollout, "rollout_decode", [-1.0, -1.0])}
    assert compare(decode, rollout, contract, verdict_arm="rollout_decode").comparison.status == "INVALID_ARTIFACT"
    with pytest.raises(UnknownNameError, match="'decode'"):
        compare(training, rollout, contract, verdict_arm="decode")
    with pytest.raises(UnknownNameError, match="no verdict arm"):
        compare(training, rollout, contract, verdict_arm="training")


SCORES = st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=30)


@given(SCORES)
@settings(max_examples=60)
def test_the_mask_can_be_recomputed_offline(pairs: list[tuple[float, float]]) -> None:
    active = np.array([False] + [True] * len(pairs))
    tensors = {
        "token_ids": np.arange(len(active)),
        "offsets": np.array([0, len(active)]),
        "active_mask": active,
        "attention_mask": np.ones(len(active), dtype=bool),
        "position_ids": np.arange(len(active)),
        "selected_token_ids": np.arange(len(active)),
        "segment": active.astype(np.int8),
        "weight_version": np.zeros(len(active)),
    }
    from xcfg.identity.rollout import make_rollout
    from xcfg.schema.identity import CheckpointRef

    rollout = make_rollout(tensors, checkpoint=CheckpointRef(uri=""))
    scores = np.array([(np.nan, np.nan), *pairs])
    tables = {
        arm: ScoreTable(arm=arm, compute_dtype="bfloat16", logprob=scores[:, side].copy(), active=active)
        for side, arm in enumerate(("training", "rollout_prefill"))
    }
    outcome = compare(tables, rollout, load_contract(), verdict_arm="rollout_prefill")
    diffs, threshold = outcome.token_diffs, outcome.comparison.threshold
    assert threshold == 6e-2
    expected = [abs(a - b) > threshold for a, b in pairs]
    edge = "training_vs_rollout"
    assert diffs[f"{edge}.mismatch"][1:].tolist() == expected
    assert diffs[f"{edge}.difference"][1:].tolist() == [a - b for a, b in pairs]
    assert diffs[f"{edge}.mask"].tolist() == active.tolist()
    assert outcome.comparison.status == ("MISMATCH" if any(expected) else "PASS")
    assert outcome.comparison.edges[edge].threshold == threshold

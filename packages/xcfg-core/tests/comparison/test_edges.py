"""Which edges exist, over which tokens, and that only the verdict edge decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xcfg.comparison import ScoreTable, compare
from xcfg.schema.contract import Contract
from xcfg.schema.names import Phase

FOUR = [-1.0, -1.25, -1.5, -1.75]


@pytest.fixture
def four_arms(rollout_of: Any, table_of: Any) -> Any:
    """Five tokens, four active; prefill is off by 1/64, decode by 1/32, recorded by 1/16 on the last token."""

    def make(**changes: Any) -> tuple[Any, dict[str, ScoreTable]]:
        recorded = np.array([np.nan, np.nan, *[x - 2.0**-4 for x in FOUR[1:]]])
        rollout = rollout_of([5], recorded=recorded)
        phase = np.array([0, Phase.FIRST_TOKEN, Phase.DECODE, Phase.RECOMPUTED, Phase.DECODE], dtype=np.int8)
        tables = {
            "training": table_of(rollout, "training", FOUR),
            "rollout_prefill": table_of(rollout, "rollout_prefill", [x - 2.0**-6 for x in FOUR]),
            "rollout_decode": table_of(
                rollout, "rollout_decode", [x - 2.0**-5 for x in FOUR], columns={"phase": phase}
            ),
        }
        return rollout, {**tables, **changes}

    return make


def test_every_edge_of_the_contract(four_arms: Any, contract: Contract) -> None:
    rollout, tables = four_arms()
    outcome = compare(tables, rollout, contract, verdict_arm="rollout_decode")
    edges = outcome.comparison.edges
    assert {name: (edge.first, edge.second) for name, edge in edges.items()} == {
        "training_vs_rollout": ("training", "rollout_decode"),
        "training_vs_rollout_prefill": ("training", "rollout_prefill"),
        "rollout_prefill_vs_decode": ("rollout_prefill", "rollout_decode"),
        "training_vs_recorded": ("training", "recorded"),
        "decode_vs_recorded": ("rollout_decode", "recorded"),
    }
    assert {name: (edge.active_tokens, edge.bias) for name, edge in edges.items()} == {
        "training_vs_rollout": (4, 2.0**-5),
        "training_vs_rollout_prefill": (4, 2.0**-6),
        "rollout_prefill_vs_decode": (2, 2.0**-6),
        "training_vs_recorded": (3, 2.0**-4),
        "decode_vs_recorded": (3, 2.0**-5),
    }
    assert outcome.token_diffs["rollout_prefill_vs_decode.mask"].tolist() == [False, False, True, False, True]
    assert edges["training_vs_recorded"].status == "UNOBSERVABLE", "nobody attests the sampling engine's dtype"
    assert "1 active tokens" not in edges["training_vs_rollout"].reason
    assert outcome.comparison.status == "PASS"
    assert set(outcome.token_diffs) == {
        f"{edge}.{part}" for edge in edges for part in ("first", "second", "mask", "mismatch", "difference")
    }


def test_differences_of_arms_add_up_per_token(four_arms: Any, contract: Contract) -> None:
    rollout, tables = four_arms()
    diffs = compare(tables, rollout, contract, verdict_arm="rollout_decode").token_diffs
    where = diffs["rollout_prefill_vs_decode.mask"]
    total = diffs["training_vs_rollout_prefill.difference"] + diffs["rollout_prefill_vs_decode.difference"]
    np.testing.assert_allclose(total[where], diffs["training_vs_rollout.difference"][where], atol=1e-15)


def test_prefill_as_the_verdict_arm(four_arms: Any, contract: Contract) -> None:
    rollout, tables = four_arms()
    del tables["rollout_decode"]
    comparison = compare(tables, rollout, contract, verdict_arm="rollout_prefill").comparison
    assert set(comparison.edges) == {"training_vs_rollout", "training_vs_rollout_prefill", "training_vs_recorded"}
    verdict, twin = comparison.edges["training_vs_rollout"], comparison.edges["training_vs_rollout_prefill"]
    assert (verdict.second, verdict.bias, verdict.worst) == (twin.second, twin.bias, twin.worst)
    assert comparison.verdict_arm == "rollout_prefill"


def test_no_difference_but_the_verdict_s_changes_the_status(four_arms: Any, table_of: Any, contract: Contract) -> None:
    rollout, tables = four_arms()
    far = table_of(rollout, "rollout_prefill", [-9.0] * 4)
    outcome = compare({**tables, "rollout_prefill": far}, rollout, contract, verdict_arm="rollout_decode")
    assert outcome.comparison.edges["training_vs_rollout_prefill"].status == "MISMATCH"
    assert outcome.comparison.status == "PASS"


SPOILT = {
    "rollout_prefill": ("training_vs_rollout_prefill", "rollout_prefill_vs_decode"),
    "recorded": ("training_vs_recorded", "decode_vs_recorded"),
}


@pytest.mark.parametrize("decode", [-2.0, -9.0])
@pytest.mark.parametrize(
    ("arm", "value"), [("rollout_prefill", np.nan), *((arm, bad) for arm in SPOILT for bad in (np.inf, -np.inf))]
)
def test_an_arm_beside_the_verdict_that_is_no_artifact_is_no_pass(
    arm: str, decode: float, value: float, four_arms: Any, table_of: Any, contract: Contract
) -> None:
    """Failing means that a case passes, or is called drift, while one of its arms holds no log probabilities."""
    rollout, tables = four_arms()
    phase = tables["rollout_decode"].columns
    both = {"training": table_of(rollout, "training", [-2.0] * 4)}
    both["rollout_decode"] = table_of(rollout, "rollout_decode", [decode] * 4, columns=phase)
    kept = {"rollout_prefill": tables["rollout_prefill"], "recorded": table_of(rollout, "recorded", FOUR)}
    sound = compare({**both, **kept}, rollout, contract, verdict_arm="rollout_decode").comparison
    assert sound.status == ("PASS" if decode == -2.0 else "MISMATCH") and sound.artifact_errors == ()
    spoilt = {arm: table_of(rollout, arm, [-2.0, value, -2.0, value])}
    comparison = compare({**both, **kept, **spoilt}, rollout, contract, verdict_arm="rollout_decode").comparison
    assert comparison.status == "INVALID_ARTIFACT" and f"{arm} has" in comparison.reason
    assert {comparison.edges[name].status for name in SPOILT[arm]} == {"INVALID_ARTIFACT"}
    assert comparison.edges["training_vs_rollout"] == sound.edges["training_vs_rollout"], "its own figures stand"
    assert all(f"{arm} has" in text for text in comparison.artifact_errors)


def test_a_spoilt_arm_does_not_hide_why_there_is_no_verdict(four_arms: Any, table_of: Any, contract: Contract) -> None:
    rollout, tables = four_arms()
    tables["training"] = table_of(rollout, "training", FOUR, dtype="")
    tables["rollout_prefill"] = table_of(rollout, "rollout_prefill", [np.nan] * 4)
    comparison = compare(tables, rollout, contract, verdict_arm="rollout_decode").comparison
    assert comparison.status == "UNOBSERVABLE" and "rollout_prefill has" in comparison.artifact_errors[0]


def test_a_spoilt_reference_is_no_arm_of_the_case(four_arms: Any, table_of: Any, contract: Contract) -> None:
    rollout, tables = four_arms()
    precise = {"reference:float32": table_of(rollout, "reference", [np.nan] * 4, dtype="float32")}
    comparison = compare(tables, rollout, contract, verdict_arm="rollout_decode", reference=precise).comparison
    assert (comparison.status, comparison.assessment.assessment) == ("PASS", "NO_REFERENCE")
    assert comparison.edges["training_vs_reference"].status == "INVALID_ARTIFACT" and comparison.artifact_errors


def test_without_phases_no_token_counts_as_decoded(four_arms: Any, table_of: Any, contract: Contract) -> None:
    rollout, tables = four_arms()
    tables["rollout_decode"] = table_of(rollout, "rollout_decode", FOUR)
    edge = compare(tables, rollout, contract, verdict_arm="rollout_decode").comparison.edges[
        "rollout_prefill_vs_decode"
    ]
    assert (edge.status, edge.active_tokens, edge.max_abs) == ("ZERO_ACTIVE_TOKENS", 0, None)
    assert "phase" in edge.reason


def test_a_recorded_infinity_is_an_artifact_and_a_missing_value_is_not(
    rollout_of: Any, table_of: Any, contract: Contract
) -> None:
    rollout = rollout_of([3], recorded=[np.nan, -np.inf, -1.0])
    tables = {arm: table_of(rollout, arm, [-1.0, -1.0]) for arm in ("training", "rollout_prefill")}
    edge = compare(tables, rollout, contract, verdict_arm="rollout_prefill").comparison.edges["training_vs_recorded"]
    assert edge.status == "INVALID_ARTIFACT"


def test_recorded_as_the_verdict_must_cover_every_active_token(
    rollout_of: Any, table_of: Any, contract: Contract
) -> None:
    rollout = rollout_of([3], recorded=[np.nan, -1.0, np.nan])
    training = {"training": table_of(rollout, "training", [-1.0, -1.0])}
    comparison = compare(training, rollout, contract, verdict_arm="recorded").comparison
    assert comparison.status == "INVALID_ARTIFACT" and "1 active tokens missing" in comparison.reason
    full = rollout_of([3], recorded=[np.nan, -1.0, -1.0])
    comparison = compare(training, full, contract, verdict_arm="recorded").comparison
    assert comparison.status == "UNOBSERVABLE"
    assert list(comparison.edges) == ["training_vs_rollout"]


def test_edges_against_the_reference(four_arms: Any, table_of: Any, contract: Contract) -> None:
    rollout, tables = four_arms()
    precise = {
        "reference:float32": table_of(rollout, "reference", [x + 1 for x in FOUR], dtype="float32"),
        "reference:float64": table_of(rollout, "reference", [x + 2.0**-7 for x in FOUR], dtype="float64"),
    }
    comparison = compare(tables, rollout, contract, verdict_arm="rollout_decode", reference=precise).comparison
    assert {name: edge.bias for name, edge in comparison.edges.items() if name.endswith("reference")} == {
        "training_vs_reference": -(2.0**-7),
        "rollout_prefill_vs_reference": -(2.0**-6) - 2.0**-7,
        "rollout_decode_vs_reference": -(2.0**-5) - 2.0**-7,
        "recorded_vs_reference": -(2.0**-4) - 2.0**-7,
    }
    assert comparison.edges["training_vs_reference"].threshold == 6e-2
    assert comparison.edges["training_vs_reference"].aliases == {}


def test_a_float32_reference_is_no_reference_for_float32(rollout_of: Any, table_of: Any, contract: Contract) -> None:
    rollout = rollout_of([3])
    tables = {arm: table_of(rollout, arm, [-1.0, -1.0], dtype="float32") for arm in ("training", "rollout_prefill")}
    precise = {"reference:float32": table_of(rollout, "reference", [-1.0, -1.0], dtype="float32")}
    comparison = compare(tables, rollout, contract, verdict_arm="rollout_prefill", reference=precise).comparison
    assert not [name for name in comparison.edges if name.endswith("reference")]
    assert comparison.assessment.assessment == "NO_REFERENCE"
    assert "reference:float64" in comparison.assessment.reason

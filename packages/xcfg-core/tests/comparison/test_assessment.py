"""The precision budget on made-up errors of known size: it must name the side at fault and never excuse a fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xcfg.comparison import compare
from xcfg.comparison.assessment import decide
from xcfg.comparison.bootstrap import on_grid, percentile_interval, resampled_sums
from xcfg.schema.contract import Contract
from xcfg.schema.names import Assessment
from xcfg.schema.result import AssessmentResult, Interval

B = 0.05


@pytest.fixture
def assess(rollout_of: Any, table_of: Any, contract: Contract) -> Any:
    """assess(training=noise, rollout=noise): the assessment with rounding noise of rms B on the plain scores."""

    def run(
        *,
        sequences: int = 16,
        tokens: int = 60,
        training: float = B,
        rollout: float = B,
        bias: float = 0.0,
        shared: float = 0.0,
        plain: tuple[float, float] = (B, 0.8 * B),
        dtypes: tuple[str, str] = ("bfloat16", "bfloat16"),
        drop: tuple[str, ...] = (),
        edit: Any = None,
        reference: str = "float32",
    ) -> AssessmentResult:
        frozen = rollout_of([tokens + 1] * sequences)
        count = sequences * tokens
        rng = np.random.default_rng(11)
        true = -5.0 - rng.exponential(0.5, count)  # so that no noise lifts one above 0
        noise = rng.normal(0.0, 1.0, (5, count))
        tables = {
            "training": table_of(
                frozen, "training", true + training * noise[0] + shared * noise[4] + bias, dtype=dtypes[0]
            ),
            "rollout_decode": table_of(
                frozen, "rollout_decode", true + rollout * noise[1] + shared * noise[4], dtype=dtypes[1]
            ),
        }
        budget = {f"reference:{reference}": table_of(frozen, "reference", true, dtype=reference)}
        for dtype in {dtype for dtype in dtypes if dtype}:
            budget[f"plain:eager:{dtype}"] = table_of(frozen, "plain", true + plain[0] * noise[2], dtype=dtype)
            budget[f"plain:sdpa:{dtype}"] = table_of(frozen, "plain", true + plain[1] * noise[3], dtype=dtype)
        for name in drop:
            del budget[name]
        if edit is not None:
            edit(budget, tables)
        outcome = compare(tables, frozen, contract, verdict_arm="rollout_decode", reference=budget)
        return outcome.comparison.assessment

    return run


def test_honest_rounding_is_explained(assess: Any) -> None:
    result = assess()
    assert result.assessment == "EXPLAINED_BY_PRECISION"
    assert result.b_training == result.b_rollout == pytest.approx(B, rel=0.05)
    assert result.r_training.value == pytest.approx(1.0, rel=0.1)
    assert result.r_gap.value == pytest.approx(1.0, rel=0.1)
    assert result.r_gap.low < result.r_gap.value < result.r_gap.high
    assert (result.sequences, result.tokens, result.reference_dtype) == (16, 960, "float32")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"rollout": 4 * B}, "EXCESS_ROLLOUT"),
        ({"training": 4 * B}, "EXCESS_TRAINING"),
        ({"training": 3 * B, "rollout": 6 * B}, "EXCESS_ROLLOUT"),
        ({"training": 6 * B, "rollout": 3 * B}, "EXCESS_TRAINING"),
        ({"bias": 0.5 * B, "training": 0.5 * B}, "BIASED"),
        ({"bias": -0.5 * B, "training": 0.5 * B}, "BIASED"),
        ({"training": 1.5 * B}, "UNDECIDED"),
    ],
)
def test_a_fault_is_named(assess: Any, fault: dict[str, float], expected: str) -> None:
    assert assess(**fault).assessment == expected


def test_a_one_sided_fault_leaves_the_other_side_alone(assess: Any) -> None:
    clean, faulty = assess(), assess(rollout=20 * B)
    assert faulty.r_training == clean.r_training, "the budget was made from the sides' own errors"
    assert faulty.r_rollout.value == pytest.approx(20, rel=0.1)
    assert "r_rollout" in faulty.reason


def test_both_sides_in_excess_are_both_named(assess: Any) -> None:
    reason = assess(training=3 * B, rollout=6 * B).reason
    assert "r_rollout" in reason and "r_training" in reason


def test_only_the_gap_in_excess(assess: Any) -> None:
    def opposite(budget: Any, tables: Any) -> None:
        reference = budget["reference:float32"].logprob
        tables["training"].logprob[:] = reference + 1.1 * (tables["rollout_decode"].logprob - reference) * -1

    assert assess(rollout=1.2 * B, edit=opposite).assessment == "EXCESS_GAP"


def test_errors_in_common_make_a_small_gap_and_two_bad_sides(assess: Any) -> None:
    result = assess(training=0.1 * B, rollout=0.1 * B, shared=5 * B)
    assert result.assessment in ("EXCESS_TRAINING", "EXCESS_ROLLOUT")
    assert result.r_gap.high < 0.5


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"drop": ("reference:float32",)}, "reference"),
        ({"drop": ("plain:eager:bfloat16",)}, "plain:eager:bfloat16"),
        ({"drop": ("plain:sdpa:bfloat16",)}, "plain:sdpa:bfloat16"),
        ({"dtypes": ("float32", "bfloat16")}, "reference:float64"),
        ({"dtypes": ("float64", "bfloat16")}, "reference:float64"),
        ({"dtypes": ("bfloat16", "")}, "was not observed"),
    ],
)
def test_what_is_missing_is_named(assess: Any, change: dict[str, Any], names: str) -> None:
    result = assess(**change)
    assert result.assessment == "NO_REFERENCE"
    assert names in result.reason
    assert result.r_gap is None


def test_a_float64_reference_serves_float32(assess: Any) -> None:
    result = assess(dtypes=("float32", "bfloat16"), reference="float64")
    assert (result.assessment, result.reference_dtype) == ("EXPLAINED_BY_PRECISION", "float64")


def test_a_float64_side_takes_its_own_plain_scores_or_the_float32_ones(assess: Any) -> None:
    def rename(budget: Any, tables: Any) -> None:
        for kind in ("eager", "sdpa"):
            budget[f"plain:{kind}:float32"] = budget.pop(f"plain:{kind}:float64")

    own = assess(dtypes=("float64", "bfloat16"), reference="float64")
    lent = assess(dtypes=("float64", "bfloat16"), reference="float64", edit=rename)
    assert own.assessment == lent.assessment == "EXPLAINED_BY_PRECISION"
    assert own.b_training == lent.b_training


@pytest.mark.parametrize("name", ["reference:float32", "plain:sdpa:bfloat16"])
def test_a_spoilt_table_is_no_reference(assess: Any, name: str) -> None:
    def spoil(budget: Any, tables: Any) -> None:
        budget[name].logprob[5] = np.nan

    result = assess(edit=spoil)
    assert result.assessment == "NO_REFERENCE"
    assert name in result.reason and "not finite" in result.reason


def test_a_sample_of_sequences_serves_and_is_stated(assess: Any) -> None:
    def sample(budget: Any, tables: Any) -> None:
        for table in budget.values():
            table.active[10 * 61 :] = False
            table.logprob[10 * 61 :] = np.nan

    result = assess(edit=sample)
    assert (result.assessment, result.sequences, result.tokens) == ("EXPLAINED_BY_PRECISION", 10, 600)
    assert "10 of 16 sequences" in result.reason


@pytest.mark.parametrize(("sequences", "expected"), [(7, "UNDECIDED"), (8, "EXPLAINED_BY_PRECISION")])
def test_too_few_sequences_decide_nothing(assess: Any, sequences: int, expected: str) -> None:
    result = assess(sequences=sequences)
    assert result.assessment == expected
    assert (result.r_gap is None) == (expected == "UNDECIDED")
    assert result.b_training is not None


def test_a_budget_of_zero_divides_nothing(assess: Any) -> None:
    result = assess(plain=(0.0, 0.0))
    assert (result.assessment, result.b_training, result.r_gap) == ("UNDECIDED", 0.0, None)
    assert "budget is 0" in result.reason


def test_everything_equal_to_the_reference_is_explained(assess: Any) -> None:
    result = assess(plain=(0.0, 0.0), training=0.0, rollout=0.0)
    assert result.assessment == "EXPLAINED_BY_PRECISION"
    assert "bit for bit" in result.reason


def test_an_exact_side_beside_an_honest_one(assess: Any) -> None:
    result = assess(training=0.0)
    assert result.r_training.value == 0.0
    assert result.assessment == "EXPLAINED_BY_PRECISION"


def test_the_assessment_never_changes_the_status(rollout_of: Any, table_of: Any, contract: Contract) -> None:
    rollout = rollout_of([3])
    tables = {arm: table_of(rollout, arm, [-1.0, -1.0]) for arm in ("training", "rollout_prefill")}
    bare = compare(tables, rollout, contract, verdict_arm="rollout_prefill").comparison
    far = {"reference:float32": table_of(rollout, "reference", [-5.0, -5.0], dtype="float32")}
    far |= {f"plain:{kind}:bfloat16": table_of(rollout, "plain", [-5.0, -5.1]) for kind in ("eager", "sdpa")}
    judged = compare(tables, rollout, contract, verdict_arm="rollout_prefill", reference=far).comparison
    assert (bare.status, judged.status) == ("PASS", "PASS")


def interval(low: float, high: float) -> Interval:
    return Interval(value=(low + high) / 2, low=low, high=high)


@pytest.mark.parametrize(
    ("training", "rollout", "gap", "bias", "expected"),
    [
        ((1, 1.4), (1, 1.4), (1, 1.4), (-0.1, 0.1), Assessment.EXPLAINED_BY_PRECISION),
        ((1, 1.4), (1, 1.4), (1, 1.4), (0.1, 0.4), Assessment.EXPLAINED_BY_PRECISION),
        ((1, 1.4), (1, 1.4), (1, 1.4), (0.26, 0.4), Assessment.BIASED),
        ((1, 1.4), (1, 1.4), (1, 1.4), (-0.4, -0.26), Assessment.BIASED),
        ((1, 1.4), (1, 1.4), (1.6, 2), (0.3, 0.4), Assessment.EXCESS_GAP),
        ((1.6, 2), (1, 1.4), (1.6, 2), (0.3, 0.4), Assessment.EXCESS_TRAINING),
        ((1.6, 2), (3, 4), (1.6, 2), (0, 0), Assessment.EXCESS_ROLLOUT),
        ((1.4, 1.6), (1, 1.4), (1, 1.4), (0, 0), Assessment.UNDECIDED),
        ((1, 1.5), (1, 1.4), (1, 1.4), (0, 0), Assessment.UNDECIDED),
        ((1.5, 2), (1, 1.4), (1, 1.4), (0, 0), Assessment.UNDECIDED),
    ],
)
def test_precedence(contract: Contract, training: Any, rollout: Any, gap: Any, bias: Any, expected: Assessment) -> None:
    intervals = {
        "r_training": interval(*training),
        "r_rollout": interval(*rollout),
        "r_gap": interval(*gap),
        "bias": interval(*bias),
    }
    found, reason = decide(intervals, contract.assessment, 1.0)
    assert found is expected
    assert reason or expected is Assessment.EXPLAINED_BY_PRECISION


def test_resampling_equals_a_plain_loop() -> None:
    columns = np.random.default_rng(0).integers(0, 1000, (6, 3)).astype(float)
    found = resampled_sums(columns, 50, seed=9)
    raw = np.random.PCG64(9).random_raw(50 * 6)
    for row in range(50):
        picks = [((int(word) >> 32) * 6) >> 32 for word in raw[row * 6 : row * 6 + 6]]
        assert found[row].tolist() == columns[picks].sum(axis=0).tolist()


def test_the_grid_makes_sums_independent_of_order() -> None:
    rng = np.random.default_rng(2)
    values = on_grid(rng.normal(size=(1000, 1)) * np.exp(rng.normal(size=(1000, 1))))
    order = [values[rng.permutation(1000), 0] for _ in range(5)]
    assert len({float(np.cumsum(item)[-1]) for item in order}) == 1


def test_the_interval_has_about_the_width_of_theory() -> None:
    """For the mean of n independent values the interval is close to +-1.96 sigma / sqrt(n)."""
    values = np.random.default_rng(4).normal(size=(400, 1))
    columns = np.concatenate([np.ones((400, 1)), values], axis=1)
    sums = resampled_sums(columns, 2000, seed=1)
    low, high = percentile_interval(sums[:, 1] / sums[:, 0], 0.95)
    expected = 1.96 * float(values.std()) / 20
    assert (high - low) / 2 == pytest.approx(expected, rel=0.06)
    assert (high + low) / 2 == pytest.approx(float(values.mean()), abs=0.1 * expected)

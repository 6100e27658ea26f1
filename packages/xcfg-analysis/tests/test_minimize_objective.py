"""Objectives on hand-made samples: what is met, what fails, and what no interval settles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xcfg.errors import UsageError
from xcfg.schema.result import AssessmentResult
from xcfg_analysis.minimize.objective import Outcome, parse
from xcfg_analysis.samples.interval import IntervalRule
from xcfg_analysis.samples.sample import K3, SQUARES, TOKENS, Sample

MEETS, FAILS, UNRESOLVED = Outcome.MEETS, Outcome.FAILS, Outcome.UNRESOLVED
RULE = IntervalRule(level=0.95, seed=1, min_sequences=8)


def made(squares=None, k3=None, *, status="MISMATCH", threshold=0.1, top=1.0, assessment="UNDECIDED", budget=0.03):
    squares = np.ones(12) if squares is None else np.asarray(squares, dtype=float)
    sums = np.zeros((len(squares), 4))
    sums[:, TOKENS], sums[:, SQUARES] = 10, squares
    sums[:, K3] = squares / 2 if k3 is None else k3
    return Sample("case", status, "why", threshold, top, assessment, (budget, budget), sums)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("verdict", "verdict"),
        (" explained ", "explained"),
        ("k3<=0.001", "k3<=0.001"),
        ("k3 <= 1e-6", "k3<=1e-06"),
        ("reduction>=50%", "reduction>=50%"),
        ("reduction >= 99.5 %", "reduction>=99.5%"),
    ],
)
def test_names(text, name):
    assert parse(text).name == name


@pytest.mark.parametrize(
    "text",
    ["", "PASS", "k3", "k3<=", "k3<=-1", "k3<=nan", "k3<=1%", "k3>=1", "reduction>=0.5", "reduction>=0%",
     "reduction>=101%", "reduction<=5%", "k3<=1e999"],
)  # fmt: skip
def test_what_is_no_objective_is_refused_with_what_there_is(text):
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert "k3<=X" in refused.value.hint


def test_the_verdict_is_judged_by_the_smaller_threshold():
    """Failing means that a case passes by computing in a dtype that is allowed more."""
    verdict = parse("verdict")
    production = made(threshold=0.1, top=0.5)
    assert verdict.judge([made(threshold=0.1, top=0.1)], [production]).outcome is MEETS
    assert verdict.judge([made(threshold=0.9, top=0.2)], [production]).outcome is FAILS
    assert verdict.judge([made(threshold=0.01, top=0.05)], [production]).outcome is FAILS
    assert verdict.judge([made(status="PASS", threshold=0.9, top=0.2)], [production]).outcome is FAILS


def test_scorings_that_disagree_on_the_verdict_are_open():
    found = parse("verdict").judge([made(top=0.05), made(top=0.2)], [made(top=0.5)])
    assert (found.outcome, found.repeatable) == (UNRESOLVED, True)
    assert "1 of 2 scorings" in found.reason


@pytest.mark.parametrize("status", ["UNSUPPORTED", "NOT_COMPARABLE", "TIMEOUT", "INVALID_IDENTITY"])
@pytest.mark.parametrize("name", ["verdict", "explained", "k3<=1", "reduction>=1%"])
def test_a_case_without_a_verdict_neither_meets_nor_fails(name, status):
    """Failing means a false pass."""
    found = parse(name, RULE).judge([made(status=status)], [made()])
    assert (found.outcome, found.repeatable) == (UNRESOLVED, False)
    assert status in found.reason


def test_the_assessment_decides_explained():
    explained = parse("explained")

    def outcome(*said, **more):
        return explained.judge([made(assessment=one, **more) for one in said], [made()]).outcome

    assert outcome("EXPLAINED_BY_PRECISION") is MEETS
    assert outcome("EXCESS_ROLLOUT") is outcome("BIASED") is FAILS
    assert outcome("UNDECIDED") is outcome("NO_REFERENCE") is UNRESOLVED
    assert outcome("EXPLAINED_BY_PRECISION", "EXCESS_GAP") is UNRESOLVED
    assert outcome("EXPLAINED_BY_PRECISION", budget=0.001) is MEETS


@pytest.mark.parametrize(
    ("lesser", "expected"),
    [
        ("EXPLAINED_BY_PRECISION", MEETS),
        ("EXCESS_TRAINING", FAILS),
        ("BIASED", FAILS),
        ("UNDECIDED", UNRESOLVED),
        ("NO_REFERENCE", UNRESOLVED),
        (None, UNRESOLVED),
    ],
)
def test_a_larger_budget_is_judged_by_the_production_points(lesser, expected):
    """Failing means that a coarser dtype meets `explained` by being allowed more, or that it stays open."""
    case = made(assessment="EXPLAINED_BY_PRECISION", budget=0.3)
    if lesser is not None:
        case = replace(case, lesser=AssessmentResult(assessment=lesser, reason="r_training = 9"))
    found = parse("explained").judge([case], [made()])
    assert found.outcome is expected
    assert "its own on training, 0.3 nats, is larger" in found.reason
    assert (found.repeatable, "r_training = 9" in found.reason) == (
        lesser not in ("NO_REFERENCE", None),
        lesser is not None,
    )
    own = replace(case, assessment="EXCESS_GAP")
    assert parse("explained").judge([own], [made()]).outcome is FAILS, "it fails by its own budget already"


def test_k3_is_decided_by_its_interval():
    rng = np.random.default_rng(0)
    k3 = rng.uniform(0.5, 1.5, 40)
    mean = k3.sum() / 400
    found = parse(f"k3<={mean * 2}", RULE).judge([made(np.ones(40), k3)], [made(np.ones(40))])
    assert found.outcome is MEETS and found.value == pytest.approx(mean)
    assert found.interval.low < mean < found.interval.high
    assert parse(f"k3<={mean / 2}", RULE).judge([made(np.ones(40), k3)], [made()]).outcome is FAILS
    held = parse(f"k3<={mean}", RULE).judge([made(np.ones(40), k3)], [made()])
    assert held.outcome is UNRESOLVED and held.repeatable
    # A width that a normal interval of the ratio of sums has, by its textbook formula.
    half = 1.96 * k3.std(ddof=1) / np.sqrt(40) / 10
    assert found.interval.high - found.interval.low == pytest.approx(2 * half, rel=0.25)


def test_reduction_pairs_the_sequences():
    """Failing means that what case and production share is counted as noise."""
    rng = np.random.default_rng(1)
    before = rng.exponential(size=30) * 10
    after = before * 0.25
    found = parse("reduction>=74%", RULE).judge([made(after)], [made(before)])
    assert found.outcome is MEETS and found.value == pytest.approx(0.75)
    assert 0.74 <= found.interval.low < 0.75 < found.interval.high
    assert parse("reduction>=76%", RULE).judge([made(after)], [made(before)]).outcome is FAILS
    noisy = after * rng.uniform(0.2, 1.8, 30)
    found = parse("reduction>=75%", RULE).judge([made(noisy)], [made(before)])
    assert found.outcome is UNRESOLVED and found.interval.low < 0.75 < found.interval.high
    assert found.value == pytest.approx(1 - noisy.sum() / before.sum())


def test_a_case_may_be_worse_than_production():
    found = parse("reduction>=10%", RULE).judge([made(np.full(12, 2.0))], [made(np.ones(12))])
    assert found.outcome is FAILS and found.value == pytest.approx(-1.0)


def test_everything_gone_is_a_reduction_of_all():
    found = parse("reduction>=100%", RULE).judge([made(np.zeros(12))], [made(np.ones(12))])
    assert (found.outcome, found.value) == (MEETS, 1.0)


def test_a_case_with_few_differing_sequences_left_is_decided():
    """Failing means that a case which is nearly equal is called open, since few of its sequences still differ."""
    after = np.zeros(32)
    after[3] = 0.01
    found = parse("reduction>=90%", RULE).judge([made(after)], [made(np.linspace(0.5, 1.5, 32))])
    assert found.outcome is MEETS and found.value == pytest.approx(1 - 0.01 / 32)


def test_too_few_sequences_decide_nothing():
    for name in ("k3<=1", "reduction>=1%"):
        found = parse(name, RULE).judge([made(np.zeros(7))], [made(np.ones(7))])
        assert found.outcome is UNRESOLVED and "7 sequences" in found.reason and not found.repeatable


def test_what_is_not_known_decides_nothing():
    found = parse("k3<=1", RULE).judge([made(np.zeros(12), np.full(12, np.nan))], [made()])
    assert found.outcome is UNRESOLVED and not found.repeatable
    other = parse("reduction>=1%", RULE).judge([made(np.zeros(11))], [made(np.ones(12))])
    assert other.outcome is UNRESOLVED and "other tokens" in other.reason


def test_repeats_are_averaged():
    """Failing means that noise of a run cannot be repeated away."""
    rng = np.random.default_rng(3)
    level = np.full(12, 0.5)
    runs = [level * (1 + 0.8 * rng.choice([-1, 1], 12)) for _ in range(9)]
    objective, production = parse("reduction>=40%", RULE), [made(np.ones(12))]
    assert objective.judge([made(runs[0])], production).outcome is UNRESOLVED
    pooled = objective.judge([made(one) for one in runs], production)
    assert pooled.value == pytest.approx(1 - np.mean(runs))
    first = objective.judge([made(runs[0])], production).interval
    assert pooled.interval.high - pooled.interval.low < 0.5 * (first.high - first.low)

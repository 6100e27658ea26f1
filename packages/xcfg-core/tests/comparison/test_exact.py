"""The exact sum against math.fsum and Fraction: an error here would let figures depend on order or chunking."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xcfg.comparison import exact
from xcfg.comparison.exact import ExactSum, Runs, Scattered, slices

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.one_of(
    FINITE,
    st.floats(min_value=-1e3, max_value=1e3),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 2.2e-308, 1e16, -1e16, 1.0, 1e308, -1e308, 2.0**900, -(2.0**899)]),
)


def exact_sum(values: list[float]) -> float | None:
    total = ExactSum()
    total.add(np.array(values, dtype=np.float64))
    return total.sum()


@given(st.lists(NUMBERS, max_size=60))
@settings(max_examples=200)
def test_equals_the_exact_fraction_rounded_once(values: list[float]) -> None:
    true = sum(map(Fraction, values), Fraction(0))
    try:
        expected: float | None = true.numerator / true.denominator
    except OverflowError:
        expected = None
    assert exact_sum(values) == expected


@given(st.lists(st.floats(min_value=-1e100, max_value=1e100), max_size=60), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_equals_fsum_in_any_order_and_chunking(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    total = ExactSum()
    for start in range(0, len(shuffled), 7):
        total.add(np.array(shuffled[start : start + 7], dtype=np.float64))
    assert total.sum() == math.fsum(values)


@pytest.mark.parametrize(
    "values",
    [
        [1e16, 1.0, -1e16],
        [1.0, 1e-300, -1.0],
        [5e-324] * 7,
        [5e-324, -1.0, 1.0],
        [1e308, -1e308, 1.0],
        [2.0**1023, -(2.0**1023), 2.0**-1074],
        [0.1] * 10,
        [1.0, 2.0**-53, 2.0**-53],
        [1.0, 2.0**-53, 2.0**-105],
        [],
    ],
)
def test_hand_picked_cancellations(values: list[float]) -> None:
    assert exact_sum(values) == math.fsum(values)


def test_many_values_of_one_size() -> None:
    values = np.random.default_rng(1).normal(0.0, 0.02, 40_000)
    total = ExactSum()
    for part in np.array_split(values, 11):
        total.add(part)
    assert total.sum() == math.fsum(values)
    true = sum(map(Fraction, values.tolist()), Fraction(0)) / 40_000
    assert total.mean(40_000) == true.numerator / true.denominator


def test_slices_add_up_exactly_and_leave_the_input_alone() -> None:
    values = np.array([1e300, -3.5, 2.0**-1074, 0.1, 2.0**950])
    kept = values.copy()
    parts = [(part.copy(), shift) for (_, shift), part in slices(values)]
    for place, value in enumerate(values):
        assert sum(Fraction(float(part[place])) * 2**shift for part, shift in parts) == Fraction(float(value))
    np.testing.assert_array_equal(values, kept)


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-1e6, 1e6)), min_size=1, max_size=80))
@settings(max_examples=100)
def test_groups_equal_fsum_per_group(pairs: list[tuple[int, float]]) -> None:
    pairs.sort(key=lambda pair: pair[0])
    index = np.array([group for group, _ in pairs], dtype=np.int64)
    values = np.array([value for _, value in pairs])
    for groups in (Scattered(index), Runs(index)):
        total = ExactSum(5)
        for key, part in slices(values):
            total.put(key, part, groups)
        expected = [math.fsum(values[index == group]) for group in range(5)]
        assert total.means(np.ones(5, dtype=np.int64)) == expected
        assert total.means(np.array([0, 2, 0, 4, 8])) == [0.0, expected[1] / 2, 0.0, expected[3] / 4, expected[4] / 8]
        assert [total.mean(1, (group,)) for group in range(5)] == expected
        assert total.mean(1, range(5)) == math.fsum(values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_leaves_no_sum(value: float) -> None:
    total = ExactSum()
    total.add(np.array([1.0, value]))
    assert not total.finite
    assert total.sum() is None


def test_overflow_is_none_and_a_mean_may_still_exist() -> None:
    total = ExactSum()
    total.add(np.array([1.7e308, 1.7e308]))
    assert total.sum() is None
    assert total.mean(2) == 1.7e308


def test_a_full_level_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "ROOM", 8)
    values = np.random.default_rng(0).normal(size=100)
    total = ExactSum()
    for part in np.array_split(values, 20):
        total.add(part)
    assert total.sum() == math.fsum(values)
    assert total.means(np.array([1])) == [math.fsum(values)]

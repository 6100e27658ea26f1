"""Tests and intervals against tables, formulas and brute force that do not use them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from xcfg_analysis.stats import (
    binomial_tail,
    bootstrap_effect,
    straight,
    student_quantile,
    student_tail,
    through_origin,
)


@pytest.mark.parametrize(("t", "freedom", "tail"), [(2.228, 10, 0.025), (12.706, 1, 0.025), (4.587, 10, 0.0005)])
def test_student_tail_is_the_printed_table(t, freedom, tail):
    """Failing means that p values are wrong: these are the entries of any table of Student's t."""
    assert student_tail(t, freedom) == pytest.approx(tail, rel=2e-3)
    assert student_quantile(freedom, tail) == pytest.approx(t, rel=2e-3)


@pytest.mark.parametrize("t", [0.0, 0.3, 5.0, 300.0])
def test_one_degree_of_freedom_is_cauchy(t):
    """Failing means that the far tail, which decides, is cut off."""
    assert student_tail(t, 1.0) == pytest.approx(0.5 - math.atan(t) / math.pi, rel=1e-4)


def test_student_tail_of_infinity_is_zero():
    assert student_tail(math.inf, 3.0) == 0.0


@pytest.mark.parametrize(("hits", "trials", "chance"), [(0, 5, 0.3), (2, 5, 0.3), (5, 5, 0.3), (8, 16, 0.05)])
def test_binomial_tail_is_the_sum_of_its_terms(hits, trials, chance):
    """Failing means that a small group is accused by a wrong count."""
    terms = [math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(hits, trials + 1)]
    assert binomial_tail(hits, trials, chance) == pytest.approx(sum(terms), rel=1e-12)


def test_slopes_are_least_squares():
    """Failing means that a fitted figure is not what it says; numpy.linalg solves the same problem otherwise."""
    rng = np.random.default_rng(0)
    x, cluster = rng.normal(size=60), np.repeat(np.arange(12), 5)
    y = 0.7 * x + 3 + rng.normal(size=60)
    free = np.linalg.lstsq(np.stack([x, np.ones(60)], 1), y, rcond=None)[0]
    line = straight(x, y, cluster)
    assert (line.slope, line.intercept) == pytest.approx(tuple(free))
    assert through_origin(x, y, cluster).slope == pytest.approx(float(np.linalg.lstsq(x[:, None], y, rcond=None)[0][0]))


def test_error_is_the_sandwich_written_out():
    """Failing means that tokens of one sequence count as independent, so that everything looks significant."""
    rng = np.random.default_rng(1)
    cluster = np.repeat(np.arange(8), 6)
    x = rng.normal(size=48)
    y = np.repeat(rng.normal(size=8), 6) + 0.1 * rng.normal(size=48)
    line = through_origin(x, y, cluster)
    meat = 0.0
    for one in range(8):
        here = cluster == one
        meat += float(x[here] @ (y[here] - line.slope * x[here])) ** 2
    assert line.error == pytest.approx(math.sqrt(meat * 8 / 7) / float(x @ x))


def test_a_regressor_carried_by_one_sequence_has_one_degree_of_freedom():
    """Failing means that one odd sequence among many is taken for a law."""
    cluster = np.repeat(np.arange(20), 4)
    x = (cluster == 3).astype(float)
    assert through_origin(x, x + 0.1, cluster).freedom == 1.0


def test_no_fit_where_nothing_varies():
    cluster = np.repeat(np.arange(4), 4)
    assert straight(np.ones(16), np.arange(16.0), cluster) is None
    assert through_origin(np.zeros(16), np.arange(16.0), cluster) is None
    assert through_origin(np.ones(3), np.ones(3), np.zeros(3, int)) is None


def test_false_alarms_come_as_often_as_promised():
    """Failing means that p values are too small when tokens of a sequence move together."""
    rng = np.random.default_rng(2)
    cluster = np.repeat(np.arange(16), 20)
    p_values = []
    for _ in range(400):
        y = np.repeat(rng.normal(size=16), 20) + rng.normal(size=320)
        p_values.append(through_origin(np.ones(320), y, cluster).two_sided)
    assert 0.02 < np.mean(np.array(p_values) < 0.05) < 0.09


def test_effect_is_the_root_mean_of_what_was_removed():
    """Failing means that the size in nats is not that of the concerned tokens."""
    removed = np.array([0.04, 0.04, 9.0, 0.04] * 10)
    concerned = np.array([True, True, False, True] * 10)
    value, low, high = bootstrap_effect(removed, concerned, np.repeat(np.arange(10), 4))
    assert (value, low, high) == pytest.approx((0.2, 0.2, 0.2))


def test_effect_interval_covers_the_spread_between_sequences():
    rng = np.random.default_rng(3)
    level = rng.exponential(size=40)
    value, low, high = bootstrap_effect(np.repeat(level, 5), np.ones(200, bool), np.repeat(np.arange(40), 5))
    assert low < value < high
    assert value == pytest.approx(math.sqrt(level.mean()))

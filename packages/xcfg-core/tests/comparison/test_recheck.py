"""Recomputing a stored comparison: a changed figure is found, the last bit of an exponential is not a change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from xcfg.comparison import same_comparison
from xcfg.schema.codec import decode_json, evolve, pretty_json
from xcfg.schema.result import Comparison


@pytest.fixture
def comparison(judge: Any) -> Comparison:
    rng = np.random.default_rng(0)
    base = -rng.exponential(1.0, 50)
    return judge(base, base + rng.normal(0, 0.05, 50)).comparison


def changed(comparison: Comparison, **fields: Any) -> Comparison:
    edge = evolve(comparison.edges["training_vs_rollout"], **fields)
    return evolve(comparison, edges={"training_vs_rollout": edge})


def test_equal_and_stored_comparisons_agree(comparison: Comparison) -> None:
    stored = decode_json(pretty_json(comparison), Comparison)
    assert same_comparison(comparison, comparison) == []
    assert same_comparison(stored, comparison) == []
    assert stored == comparison


@pytest.mark.parametrize("name", ["mismatches", "active_tokens"])
def test_counts_are_exact(comparison: Comparison, name: str) -> None:
    value = getattr(comparison.edges["training_vs_rollout"], name)
    found = same_comparison(comparison, changed(comparison, **{name: value + 1}))
    assert found == [f"edges.training_vs_rollout.{name}: {value}, {value + 1}"]


@pytest.mark.parametrize("name", ["max_abs", "mean_abs", "bias", "p99_abs", "threshold", "clipfrac0"])
def test_selections_and_exact_means_are_exact(comparison: Comparison, name: str) -> None:
    value = getattr(comparison.edges["training_vs_rollout"], name)
    assert same_comparison(comparison, changed(comparison, **{name: math.nextafter(value, 9.0)}))


@pytest.mark.parametrize("name", ["approx_kl0", "ratio0", "ess", "chi2", "pearson", "ppl_ratio", "rms"])
def test_exponentials_agree_to_1e_12(comparison: Comparison, name: str) -> None:
    value = getattr(comparison.edges["training_vs_rollout"], name)
    assert same_comparison(comparison, changed(comparison, **{name: value * (1 + 1e-13)})) == []
    assert same_comparison(comparison, changed(comparison, **{name: value * (1 + 1e-11)}))
    assert same_comparison(comparison, changed(comparison, **{name: None}))


def test_statuses_texts_and_shapes(comparison: Comparison) -> None:
    assert same_comparison(comparison, evolve(comparison, status="PASS"))
    assert same_comparison(comparison, evolve(comparison, reason="none"))
    assert same_comparison(comparison, evolve(comparison, edges={})) == ["edges.training_vs_rollout: only in the first"]
    edge = comparison.edges["training_vs_rollout"]
    assert same_comparison(comparison, changed(comparison, worst=edge.worst[1:]))
    swapped = (edge.worst[1], edge.worst[0], *edge.worst[2:])
    assert same_comparison(comparison, changed(comparison, worst=swapped))
    assert same_comparison(comparison, changed(comparison, comparable=1))


def test_many_differences_are_cut(comparison: Comparison) -> None:
    edge = comparison.edges["training_vs_rollout"]
    stats = tuple(evolve(item, active_tokens=item.active_tokens + 1) for item in edge.by_position * 10)
    found = same_comparison(
        changed(comparison, by_position=edge.by_position * 10), changed(comparison, by_position=stats)
    )
    assert len(found) == 21 and found[-1].startswith("and ")

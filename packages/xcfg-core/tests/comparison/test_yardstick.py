"""The smaller budget of two on errors of known size: a case gains nothing by computing in a coarser dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xcfg.comparison import assess_by
from xcfg.comparison.assessment import assess
from xcfg.comparison.layout import layout_of
from xcfg.comparison.yardstick import with_lesser

FINE, COARSE = 0.01, 0.05


@pytest.fixture
def tables(rollout_of: Any, table_of: Any) -> Any:
    """tables(training, rollout): (rollout, (arms, budget, verdict arm)) whose sides err by their dtype's rounding."""

    def make(training: float, rollout: float, *, tokens: int = 60) -> Any:
        frozen = rollout_of([tokens + 1] * 16)
        count = 16 * tokens
        rng = np.random.default_rng(7)
        true, noise = -rng.exponential(0.5, count), rng.normal(0.0, 1.0, (6, count))
        names = {FINE: "float16", COARSE: "bfloat16"}
        arms = {
            "training": table_of(frozen, "training", true + training * noise[0], dtype=names[training]),
            "rollout_decode": table_of(frozen, "rollout_decode", true + rollout * noise[1], dtype=names[rollout]),
        }
        budget = {"reference:float32": table_of(frozen, "reference", true, dtype="float32")}
        for size, dtype in names.items():
            for index, attention in enumerate(("eager", "sdpa"), 2):
                key = f"plain:{attention}:{dtype}"
                budget[key] = table_of(frozen, key, true + size * noise[index], dtype=dtype)
        return frozen, (arms, budget, "rollout_decode")

    return make


def test_a_coarser_side_is_held_against_what_production_was_allowed(tables: Any, contract: Any) -> None:
    """Failing means that a side which computes coarser than production's meets `explained` by its own larger budget."""
    frozen, production = tables(FINE, COARSE)
    _, coarser = tables(COARSE, COARSE)
    own = assess(
        coarser[0]["training"], coarser[0]["rollout_decode"], coarser[1], layout_of(frozen), contract.assessment
    )
    assert own.assessment == "EXPLAINED_BY_PRECISION"
    held = assess_by(coarser, production, frozen, contract.assessment)
    assert held.assessment == "EXCESS_TRAINING" and "r_training" in held.reason
    assert held.r_training.value == pytest.approx(own.r_training.value * own.b_training / held.b_training, rel=1e-12)
    assert held.b_training == pytest.approx(FINE, rel=0.1) and own.b_training == pytest.approx(COARSE, rel=0.1)
    assert held.r_rollout == own.r_rollout and held.b_rollout == own.b_rollout, "only the side that grew is held back"


def test_a_finer_case_keeps_its_own_budget(tables: Any, contract: Any) -> None:
    frozen, production = tables(COARSE, COARSE)
    _, finer = tables(FINE, COARSE)
    held = assess_by(finer, production, frozen, contract.assessment)
    own = assess(finer[0]["training"], finer[0]["rollout_decode"], finer[1], layout_of(frozen), contract.assessment)
    assert held == own and held.assessment == "EXPLAINED_BY_PRECISION"


def test_it_is_the_same_judge(tables: Any, contract: Any) -> None:
    frozen, production = tables(FINE, COARSE)
    arms, budget, arm = production
    own = assess(arms["training"], arms[arm], budget, layout_of(frozen), contract.assessment)
    assert assess_by(production, production, frozen, contract.assessment) == own


def test_without_a_budget_or_on_other_tokens_there_is_none(tables: Any, contract: Any) -> None:
    """Failing means a figure that rests on two different sets of tokens."""
    frozen, production = tables(FINE, COARSE)
    arms, budget, arm = production
    bare = (arms, {}, arm)
    assert assess_by(bare, production, frozen, contract.assessment).assessment == "NO_REFERENCE"
    assert assess_by(production, bare, frozen, contract.assessment).assessment == "NO_REFERENCE"
    fewer = dict(budget)
    item = fewer["reference:float32"]
    mask = item.active.copy()
    mask[np.flatnonzero(mask)[:3]] = False
    fewer["reference:float32"] = type(item)("reference", "float32", item.logprob, mask)
    held = assess_by(production, (arms, fewer, arm), frozen, contract.assessment)
    assert held.assessment == "NO_REFERENCE" and "other tokens" in held.reason


def test_each_side_takes_the_smaller_one_by_itself() -> None:
    mine, its = np.ones((3, 9)), np.ones((3, 9))
    mine[:, 3:7], its[:, 3:7] = [4.0, 1.0, 1.0, 1.0], [2.0, 3.0, 5.0, 0.0]
    assert with_lesser(mine, its)[:, 3:7].tolist() == [[2.0, 3.0, 1.0, 1.0]] * 3
    assert mine[0, 3] == 4.0, "the sums that came in stay as they are"

"""The search against brute force over every subset, for oracles that are monotone or not, certain or not."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xcfg_analysis.minimize.objective import Outcome
from xcfg_analysis.minimize.search import Answer, search

MEETS, FAILS, UNRESOLVED = Outcome.MEETS, Outcome.FAILS, Outcome.UNRESOLVED


def subsets(count):
    return [frozenset(item) for size in range(count + 1) for item in itertools.combinations(range(count), size)]


class Grid:
    """An oracle over a table. noise: subset -> repeats after which it is resolved; stubborn: never."""

    def __init__(self, enough, noise=None, stubborn=()):
        self.enough, self.noise, self.stubborn = set(enough), noise or {}, set(stubborn)
        self.asked = Counter()
        self.most = Counter()

    def final(self, subset, repeats):
        if subset in self.stubborn or self.noise.get(subset, 0) > repeats:
            return UNRESOLVED
        return MEETS if subset in self.enough else FAILS

    def __call__(self, questions):
        for question in questions:
            self.asked[question.subset] += 1
            self.most[question.subset] = max(self.most[question.subset], question.repeats)
        return [Answer(self.final(item.subset, item.repeats), final=item.subset in self.stubborn) for item in questions]


def brute(count, outcome):
    """Minimal sets by definition: enough, and no proper subset is."""
    enough = [item for item in subsets(count) if outcome(item) is MEETS]
    return {item for item in enough if not any(other < item for other in enough)}


def upward(count, bases):
    return {item for item in subsets(count) if any(base <= item for base in bases)}


@st.composite
def grids(draw, *, monotone=None, most=8):
    count = draw(st.integers(1, most))
    everything = subsets(count)
    chosen = draw(st.sets(st.sampled_from(everything), max_size=6))
    if monotone is None:
        monotone = draw(st.booleans())
    enough = upward(count, chosen) if monotone else chosen
    noisy = draw(st.dictionaries(st.sampled_from(everything), st.integers(0, 4), max_size=8))
    stubborn = draw(st.sets(st.sampled_from(everything), max_size=2))
    return count, enough, noisy, stubborn


@given(grids(), st.integers(0, 3))
def test_exhaustive_search_is_brute_force(grid, repeats):
    """Failing means that a minimal set is missed, or that a set is called minimal that is not."""
    count, enough, noisy, stubborn = grid
    oracle = Grid(enough, noisy, stubborn)
    found = search(count, oracle, budget=2**count, repeats=repeats)
    assert found.strategy == "exhaustive" and not found.spent

    def last(item):
        return oracle.final(item, repeats)

    assert {item.subset for item in found.sets} == brute(count, last)
    for item in found.sets:
        below = [other for other in subsets(count) if other < item.subset]
        assert item.minimal == (True if all(last(other) is FAILS for other in below) else None)
        assert item.one_minimal == (True if all(last(item.subset - {a}) is FAILS for a in item.subset) else None)
        assert set(item.open) == {other for other in below if last(other) is UNRESOLVED}
    undecided = [s for s in subsets(count) if last(s) is UNRESOLVED and not any(e.subset < s for e in found.sets)]
    assert found.complete == (not undecided)
    assert all(times <= repeats + 1 for times in oracle.asked.values())
    assert max(oracle.most.values()) <= repeats


@given(grids(), st.integers(1, 200), st.integers(0, 2))
@settings(max_examples=300)
def test_a_search_in_any_budget_claims_only_what_it_saw(grid, budget, repeats):
    """Failing means that a result says more than the sets that were asked."""
    count, enough, noisy, stubborn = grid
    oracle = Grid(enough, noisy, stubborn)
    found = search(count, oracle, budget=budget, repeats=repeats)
    assert len(oracle.asked) == len(found.trials) <= budget
    seen = {trial.subset: trial.outcome for trial in found.trials}
    assert all(oracle.final(item, repeats) is outcome for item, outcome in seen.items())
    truth = brute(count, lambda item: oracle.final(item, repeats))
    for item in found.sets:
        assert seen[item.subset] is MEETS
        if item.minimal:
            assert item.subset in truth
        if item.one_minimal:
            assert all(seen[item.subset - {atom}] is FAILS for atom in item.subset)
    if found.complete:
        assert {item.subset for item in found.sets} == truth
    if found.complete and not found.sets:
        assert not truth


@given(grids(monotone=True), st.booleans())
def test_ddmin_finds_every_set_of_a_monotone_grid(grid, quiet):
    """Failing means that delta debugging misses what it would have to find: there the hitting-set tree is complete."""
    count, enough, _, _ = grid
    oracle = Grid(enough)
    found = search(count, oracle, budget=2**count - 1, repeats=0)
    assert found.strategy == "ddmin"
    if found.covered:
        assert {item.subset for item in found.sets} == brute(count, lambda item: oracle.final(item, 0))
        assert all(item.one_minimal or not item.subset for item in found.sets)
    else:
        assert found.spent


@given(grids(monotone=True, most=8), st.data())
def test_one_of_twelve_is_found_in_few_questions(grid, data):
    """Failing means that ddmin asks as often as brute force would."""
    wanted = frozenset(data.draw(st.sets(st.integers(0, 11), min_size=1, max_size=3)))
    asked = Counter()

    def oracle(questions):
        asked.update(item.subset for item in questions)
        return [Answer(MEETS if wanted <= item.subset else FAILS) for item in questions]

    found = search(12, oracle, budget=200)
    assert [item.subset for item in found.sets] == [wanted]
    assert found.sets[0].one_minimal and found.covered and len(asked) < 100 < 2**12


def test_two_alternative_minimal_sets():
    oracle = Grid(upward(4, [frozenset({0}), frozenset({1, 2})]))
    for budget, strategy in ((16, "exhaustive"), (15, "ddmin")):
        found = search(4, oracle, budget=budget)
        assert found.strategy == strategy
        assert {item.subset for item in found.sets} == {frozenset({0}), frozenset({1, 2})}
        assert all(item.minimal for item in found.sets)


def test_a_pure_interaction():
    """Neither alone does anything; a table of single changes would blame nobody."""
    oracle = Grid(upward(3, [frozenset({0, 2})]))
    found = search(3, oracle, budget=8)
    assert [item.subset for item in found.sets] == [frozenset({0, 2})]
    assert found.outcome(frozenset({0})) is found.outcome(frozenset({2})) is FAILS
    assert found.complete


def test_nothing_suffices_is_a_result():
    found = search(3, Grid([]), budget=8)
    assert found.sets == () and found.complete and len(found.trials) == 8


def test_nothing_found_in_a_small_budget_is_no_proof():
    found = search(6, Grid([]), budget=10)
    assert found.sets == () and not found.complete and found.spent


def test_more_alignment_can_undo_what_less_did():
    """Failing means that a non-monotone grid is searched as if all alignments together had to be enough."""
    found = search(5, Grid([frozenset({1, 3})]), budget=31)
    assert found.strategy == "ddmin"
    assert [item.subset for item in found.sets] == [frozenset({1, 3})]


def test_the_production_point_needs_nothing():
    oracle = Grid(upward(6, [frozenset()]))
    found = search(6, oracle, budget=64)
    assert [item.subset for item in found.sets] == [frozenset()]
    assert found.complete and sum(oracle.asked.values()) == 1


def test_repeats_resolve_what_was_open():
    oracle = Grid(upward(2, [frozenset({1})]), noise={frozenset({0}): 2})
    found = search(2, oracle, budget=4, repeats=2)
    assert found.complete and found.sets[0].minimal and oracle.most[frozenset({0})] == 2
    short = search(2, oracle, budget=4, repeats=1)
    assert [item.subset for item in short.sets] == [frozenset({1})]
    assert not short.complete and short.unresolved == (frozenset({0}),)


def test_what_stays_open_below_a_set_leaves_its_minimality_open():
    oracle = Grid(upward(2, [frozenset({0, 1})]), stubborn=[frozenset({0})])
    found = search(2, oracle, budget=4, repeats=3)
    assert [(item.subset, item.minimal, item.one_minimal) for item in found.sets] == [(frozenset({0, 1}), None, None)]
    assert found.sets[0].open == (frozenset({0}),)
    assert oracle.asked[frozenset({0})] == 1, "a final answer is not asked again"


@pytest.mark.parametrize("atoms", [0, 1])
def test_the_smallest_searches(atoms):
    found = search(atoms, Grid([]), budget=4)
    assert found.complete and found.sets == () and len(found.trials) == 2**atoms

"""Minimal sets of an executed grid, their ranking and the document, on hand-made cubes."""

from __future__ import annotations

import pytest
from xcfg.errors import NothingSelectedError
from xcfg_analysis.minimize.atoms import Atom
from xcfg_analysis.minimize.from_grid import from_grid
from xcfg_analysis.minimize.objective import Outcome, parse
from xcfg_analysis.minimize.rank import rank
from xcfg_analysis.minimize.report import CLAIM, Searched, document
from xcfg_analysis.minimize.search import NONE, MinimalSet
from xcfg_analysis.minimize.show import text

BAD, GOOD = [1.0 + 0.01 * at for at in range(12)], [0.01] * 12


@pytest.fixture
def product(cubes):
    """product(enough): the cube of a full grid over a, b, c; a set is enough where `enough` says so."""

    def make(enough, **more):
        rows = []
        for c in (0, 1):
            for b in (0, 1):
                for a in (0, 1):
                    delta = {key: 1 for key, on in (("a", a), ("b", b), ("c", c)) if on}
                    rows.append(cubes.row(GOOD if enough(set(delta)) else BAD, delta, **more))
        return cubes.cube(*rows)

    return make


def sets(executed):
    return [{executed.atoms[index].label for index in item.subset} for item in executed.found.sets]


OBJECTIVE = "reduction>=90%"


def test_two_alternatives(product):
    executed = from_grid(product(lambda on: "a" in on or {"b", "c"} <= on), parse(OBJECTIVE))
    assert sets(executed) == [{"a=1"}, {"b=1", "c=1"}]
    assert executed.found.complete and all(item.minimal for item in executed.found.sets)


def test_a_pure_interaction_and_an_undoing_third(product):
    """Failing means that the grid is read as if more alignment never hurt."""
    executed = from_grid(product(lambda on: on == {"a", "b"}), parse(OBJECTIVE))
    assert sets(executed) == [{"a=1", "b=1"}]
    assert executed.judged[frozenset({0, 1, 2})].outcome is Outcome.FAILS


def test_nothing_suffices(product):
    found = document_of(from_grid(product(lambda on: False), parse(OBJECTIVE)), OBJECTIVE)
    assert found.minimal_sets == () and found.exit_code == 1
    assert found.ladder_level == "L2", "interventions are not everything that can be aligned: others are left to try"
    assert "every one fails" in found.conclusion


def test_no_set_is_known_yet(cubes):
    """Failing means that a broader alignment is called for while sets of the declared ones are open."""
    rows = [cubes.row(BAD), cubes.row(BAD, {"a": 1}), cubes.row(None, {"b": 1}, status="TIMEOUT")]
    found = document_of(from_grid(cubes.cube(*rows), parse(OBJECTIVE)), OBJECTIVE)
    assert (found.minimal_sets, found.ladder_level, found.exit_code) == ((), "L2", 3)
    assert "are open" in found.minimization.why_not_broader and "L5" not in found.minimization.why_not_broader


def test_cells_that_did_not_run_leave_minimality_open(cubes):
    rows = [cubes.row(BAD), cubes.row(BAD, {"a": 1}), cubes.row(GOOD, {"a": 1, "b": 1})]
    (found,) = from_grid(cubes.cube(*rows), parse(OBJECTIVE)).found.sets
    assert (found.minimal, found.one_minimal) == (None, None)
    executed = from_grid(cubes.cube(*rows), parse(OBJECTIVE))
    assert [{executed.atoms[at].label for at in item} for item in found.open] == [{"b=1"}]
    assert not executed.found.complete


def test_a_case_that_failed_to_run_is_unresolved(cubes):
    rows = [cubes.row(BAD), cubes.row(None, {"a": 1}, status="TIMEOUT"), cubes.row(GOOD, {"b": 1})]
    executed = from_grid(cubes.cube(*rows), parse(OBJECTIVE))
    assert sets(executed) == [{"b=1"}] and executed.judged[frozenset({0})].outcome is Outcome.UNRESOLVED
    assert not executed.found.complete


def test_repeats_of_a_cell_are_pooled(cubes):
    rows = [
        cubes.row(BAD),
        cubes.row([2 * x for x in BAD], {"a": 1}),
        cubes.row(GOOD, {"a": 1}, role="repeat", index=1),
    ]
    executed = from_grid(cubes.cube(*rows), parse("reduction>=50%"))
    assert executed.judged[frozenset({0})].value == pytest.approx(1 - (2 + sum(GOOD) / sum(BAD)) / 2)
    assert [trial.repeats for trial in executed.found.trials] == [0, 1]


def test_production_that_is_bit_equal_needs_nothing(cubes):
    executed = from_grid(cubes.cube(cubes.row([0.0] * 12, status="PASS", top=0.0)), parse(OBJECTIVE))
    assert [item.subset for item in executed.found.sets] == [NONE]
    found = document_of(executed, OBJECTIVE)
    assert (found.exit_code, found.ladder_level, found.minimal_sets) == (0, "L1", ((),))


def test_without_a_baseline_there_is_nothing_to_reduce(cubes):
    with pytest.raises(NothingSelectedError):
        from_grid(cubes.cube(), parse("verdict"))


def document_of(executed, objective, **more):
    facts = {
        "objective": parse(objective),
        "atoms": executed.atoms,
        "found": executed.found,
        "judged": executed.judged,
        "rows": {subset: rows[0] for subset, rows in executed.rows.items()},
        "fixed": {"training.sharding": "gathers"},
        "budget": 8,
        "repeats": 0,
        "source": "made",
    }
    return document(Searched(**(facts | more)))


def test_the_document_says_what_may_stay_different_and_what_it_does_not_prove(product):
    executed = from_grid(product(lambda on: {"a", "c"} <= on), parse(OBJECTIVE))
    found = document_of(executed, OBJECTIVE)
    assert found.minimal_sets == (("a=1", "c=1"),)
    assert found.left_enabled == ("b", "training.sharding")
    assert found.not_alignable == ("training.sharding: gathers",)
    assert (found.ladder_level, found.exit_code) == ("L4", 1)
    assert "3 proper subsets was tried and is not enough" in found.minimization.why_not_broader
    assert found.minimization.claim == CLAIM and "no proof of a root cause" in CLAIM
    shown = text(found)
    assert "PASS" not in shown, "an objective that is met is no PASS"
    for word in ("meets", "fails", "a=1 + c=1", "may differ", "no proof of a root"):
        assert word in " ".join(shown.split())


def test_an_open_production_point_is_said(cubes):
    squares = [1.0] * 12
    rows = [cubes.row(squares, assessment="UNDECIDED"), cubes.row(squares, {"a": 1})]
    found = document_of(from_grid(cubes.cube(*rows), parse("explained")), "explained")
    assert found.exit_code == 3 and "UNRESOLVED" in found.conclusion


def test_no_level_is_named_where_nothing_was_measured(cubes):
    """Failing means that a run in which no engine started is told to go up to L5."""
    rows = [cubes.row(None, status="UNSUPPORTED"), cubes.row(None, {"a": 1}, status="UNSUPPORTED")]
    found = document_of(from_grid(cubes.cube(*rows), parse("verdict")), "verdict")
    assert found.exit_code == 3 and found.ladder_level == ""
    assert "no level can be named" in found.minimization.why_not_broader


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # scope before number, number before time, time before intrusion, intrusion before maintenance
        ([{"scope": 1}, {"scope": 1, "intrusion": 9}], [{"scope": 2}]),
        ([{"scope": 2}, {"scope": 2}], [{"scope": 1}, {"scope": 3}]),  # the broadest of a set is its scope
        ([{"intrusion": 9, "seconds": 9.0}], [{}, {}]),
        ([{"intrusion": 9, "seconds": 2.0}], [{"seconds": 3.0}]),
        ([{"intrusion": 1, "maintenance": 9}], [{"intrusion": 2}]),
        ([{"maintenance": 1}], [{"maintenance": 2}]),
        ([{"intrusion": 1, "seconds": 1.02}], [{"intrusion": 2, "seconds": 1.0}]),  # the clock's noise decides nothing
    ],
)
def test_the_five_keys_in_their_order(first, second):
    atoms, groups, seconds = [], [], {}
    for group in (second, first):
        members = []
        for facts in group:
            facts = dict(facts)
            spent = facts.pop("seconds", 1.0)
            members.append(len(atoms))
            atoms.append(Atom(label=f"{len(atoms)}", knobs=(f"k{len(atoms)}",), **facts))
        groups.append(frozenset(members))
        seconds[groups[-1]] = spent
    sets_ = [MinimalSet(group, True, True) for group in groups]
    assert rank(sets_, atoms, seconds, 1.0)[0].found.subset == groups[1]

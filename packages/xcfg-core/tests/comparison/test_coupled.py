"""What else changed beside the declared knob: missing one would let two changes pass for one."""

from __future__ import annotations

from typing import Any

import pytest
from xcfg.comparison import coupled_changes
from xcfg.schema.names import Applied, Lifecycle, Tier
from xcfg.schema.runtime import KnobApplication

TIERS = {"a": Tier.IDENTICAL, "b": Tier.SEMANTIC, "c": Tier.RECORDED}


def knob(path: str, actual: Any, *, side: str = "rollout", rank: int = 0, status: Applied = Applied.APPLIED) -> Any:
    return KnobApplication(
        path=path,
        side=side,
        rank=rank,
        requested=actual,
        materialized=actual,
        actual=actual,
        status=status,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
    )


def run(before: list[Any], after: list[Any], declared: set[str] | None = None) -> tuple[list[Any], list[Any]]:
    return coupled_changes(before, after, declared or set(), TIERS)


def test_equal_settings_are_no_change() -> None:
    same = [knob("a", 1), knob("b", "x", rank=1), knob("c", None)]
    assert run(same, list(reversed(same))) == ([], [])


@pytest.mark.parametrize(("path", "strict"), [("a", True), ("b", True), ("c", False), ("unknown", False)])
def test_an_undeclared_change_by_tier(path: str, strict: bool) -> None:
    changes, semantic = run([knob(path, 1)], [knob(path, 2)])
    tier = TIERS.get(path, Tier.RECORDED).value
    assert changes == [{"path": path, "side": "rollout", "baseline": 1, "case": 2, "tier": tier}]
    assert semantic == (changes if strict else [])


@pytest.mark.parametrize("declared", ["a", "a@rollout"])
def test_a_declared_change_is_none(declared: str) -> None:
    assert run([knob("a", 1)], [knob("a", 2)], {declared}) == ([], [])


def test_a_one_sided_declaration_does_not_cover_the_other_side() -> None:
    before, after = [knob("a", 1, side="training")], [knob("a", 2, side="training")]
    assert [change["path"] for change in run(before, after, {"a@rollout"})[1]] == ["a"]


@pytest.mark.parametrize(("one", "other"), [(True, 1), (1, 1.0), ("1", 1), (None, False)])
def test_types_count(one: Any, other: Any) -> None:
    assert run([knob("a", one)], [knob("a", other)])[0]


def test_a_setting_that_only_one_reports_is_a_change() -> None:
    assert run([], [knob("a", 1)])[0][0]["baseline"] == "not reported"
    assert run([knob("a", 1)], [])[0][0]["case"] == "not reported"


def test_what_one_could_not_observe_is_a_change_and_both_is_not() -> None:
    blind = knob("a", None, status=Applied.UNOBSERVABLE)
    assert run([knob("a", 1)], [blind])[1][0]["case"] == "unobserved"
    assert run([blind], [blind]) == ([], [])


def test_more_ranks_with_the_same_value_are_no_change_and_a_dissenting_rank_is() -> None:
    before = [knob("a", 1)]
    assert run(before, [knob("a", 1, rank=rank) for rank in range(4)]) == ([], [])
    dissent = [knob("a", 1), knob("a", 2, rank=1)]
    assert run(before, dissent)[0][0]["case"] == [1, 2]

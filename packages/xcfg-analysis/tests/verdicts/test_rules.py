"""Interpretation rules 1 to 5, decision rules 1 to 6 and the ladder, each on a cube made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from xcfg.errors import NothingSelectedError
from xcfg.schema.codec import evolve
from xcfg.schema.names import Status
from xcfg.schema.result import GroupStat
from xcfg_analysis.cube import load
from xcfg_analysis.page.production import introduced, production_row, production_status
from xcfg_analysis.rules import expand
from xcfg_analysis.rules.conclude import conclude
from xcfg_analysis.rules.downstream import Series, Trajectory
from xcfg_analysis.rules.ladder import ladder
from xcfg_analysis.rules.points import Outcome, find_points, why_no_pairs

EDGE = "training_vs_rollout"


def rule(findings, name):
    (found,) = [item for item in (*findings.interpretation, *findings.decisions) if item.rule == name]
    return found


def series(**cases):
    """series(A5={"reward": [...]}) -> Series over steps 0, 1, 2, ..."""
    made = {
        case: Trajectory({name: (np.arange(len(v)), np.asarray(v, dtype=float)) for name, v in metrics.items()})
        for case, metrics in cases.items()
    }
    return Series(made)


FLAT = [1.0, 1.1] * 20
STEP_LATE = [1.0, 1.1] * 15 + [3.0, 3.1] * 5
STEP_EARLY = [1.0, 1.1] * 5 + [3.0, 3.1] * 15
COLLAPSE = [0.1 * i for i in range(30)] + [3.0 - 0.3 * i for i in range(11)]
RISING = [0.1 * i for i in range(40)]


# --- the yardstick ------------------------------------------------------------------------------------------


def test_every_case_is_judged_by_the_smaller_threshold(row, cube):
    """Failing means that a case passes because its own dtype is coarser than production's."""
    made = cube([row("baseline", 0.1, threshold=0.2), row("coarse", 0.3, {"k": 1}, threshold=0.5)])
    points = find_points(made)
    assert made.rows[1].status == "PASS"
    assert points.outcome(made.rows[1]) is Outcome.FAILS
    assert points.outcome(made.rows[0]) is Outcome.PASSES


def test_what_holds_no_number_was_not_measured(row, failed, cube):
    points = find_points(cube([row("baseline")]))
    assert points.outcome(None) is Outcome.UNMEASURED
    assert points.outcome(failed("a", "UNSUPPORTED")) is Outcome.UNMEASURED
    lost = row("a")
    assert (
        points.outcome(evolve(lost, edges={EDGE: evolve(lost.edges[EDGE], max_abs=float("nan"))})) is Outcome.UNMEASURED
    )
    assert points.outcome(evolve(lost, edges={EDGE: evolve(lost.edges[EDGE], active_tokens=0)})) is Outcome.UNMEASURED


# --- interpretation -----------------------------------------------------------------------------------------


def test_1_an_aligned_reference_that_fails_is_no_mismatch_of_configurations(ladder_run):
    found = conclude(ladder_run(aligned=0.9, A1=0.9))
    assert rule(found, "interpretation 1").holds
    assert "not a mismatch of configurations yet" in rule(found, "interpretation 1").text
    assert rule(found, "interpretation 2").holds is None, "no class can be blamed when the base path fails"
    assert found.level.level == "L5" and "Debug the scoring path" in found.level.text
    assert rule(conclude(ladder_run()), "interpretation 1").holds is False
    assert rule(conclude(ladder_run(aligned=None)), "interpretation 1").holds is None


def test_2_a_class_that_fails_alone_is_sufficient(ladder_run):
    found = rule(conclude(ladder_run(A1=0.1, A2=0.1, A3=0.8)), "interpretation 2")
    assert found.holds and "representation (max |d| 0.8)" in found.text and found.evidence == ("case-A3",)
    assert "not proven root causes" in found.text
    assert rule(conclude(ladder_run(A1=0.1, A2=0.1, A3=0.1)), "interpretation 2").holds is False
    unknown = rule(conclude(ladder_run(A1=0.1, A2=0.1)), "interpretation 2")
    assert unknown.holds is None and "representation" in unknown.text


def test_3_all_alone_pass_and_the_whole_fails_is_an_interaction(ladder_run):
    alone = {"A1": 0.1, "A2": 0.1, "A3": 0.1}
    named = rule(conclude(ladder_run(**alone, A12=0.1, A13=0.9, A23=0.1)), "interpretation 3")
    assert named.holds and "arithmetic + representation" in named.text and "case-A13" in named.evidence
    more = rule(conclude(ladder_run(**alone)), "interpretation 3")
    assert more.holds and "run --profile A4" in more.text
    none = rule(conclude(ladder_run(**alone, A12=0.1, A13=0.1, A23=0.1)), "interpretation 3")
    assert none.holds and "more than two classes" in none.text
    assert rule(conclude(ladder_run(A1=0.9, A2=0.1, A3=0.1)), "interpretation 3").holds is False
    assert rule(conclude(ladder_run(**alone, production=0.2)), "interpretation 3").holds is False
    assert rule(conclude(ladder_run(**alone, production=None)), "interpretation 3").holds is None


def test_4_within_the_contract_and_worse_downstream_is_sensitive(ladder_run):
    """And no status changes for it."""
    steps = np.arange(40)
    base = 1.0 + 0.01 * np.sin(steps)
    told = series(A0={"reward": base}, A1={"reward": base - 0.5}, A2={"reward": base + 0.5})
    run = ladder_run(A1=0.1, A2=0.1, A3=0.1, production=0.2)
    found = conclude(run, told)
    assert rule(found, "interpretation 4").holds
    assert "A1 (reward" in rule(found, "interpretation 4").text and "A2" not in rule(found, "interpretation 4").text
    assert found.level == conclude(run).level
    assert rule(conclude(ladder_run(A1=0.9), told), "interpretation 4").holds is False, "A1 is not within the contract"
    assert rule(conclude(run), "interpretation 4").holds is None


def test_5_clean_and_collapsing_is_not_numerical(ladder_run):
    clean, bad = ladder_run(production=0.2), ladder_run()
    assert rule(conclude(clean, series(A5={"reward": COLLAPSE})), "interpretation 5").holds
    assert "after step" in rule(conclude(clean, series(A5={"reward": COLLAPSE})), "interpretation 5").text
    assert rule(conclude(bad, series(A5={"reward": COLLAPSE})), "interpretation 5").holds is False
    assert rule(conclude(clean, series(A5={"reward": RISING})), "interpretation 5").holds is False
    assert rule(conclude(clean, series(A5={"reward": COLLAPSE[:9]})), "interpretation 5").holds is None
    assert rule(conclude(clean), "interpretation 5").holds is None


# --- decisions ----------------------------------------------------------------------------------------------


def test_1_a_mismatch_under_one_identity_is_infrastructure(row, failed, cube):
    found = conclude(cube([row("baseline", 0.9)]))
    assert rule(found, "decision 1").holds and "Do not file it as an algorithm's" in rule(found, "decision 1").text
    assert rule(conclude(cube([row("baseline", 0.1)])), "decision 1").holds is False
    invalid = conclude(cube([failed("baseline", "INVALID_IDENTITY", "masks differ")]))
    assert rule(invalid, "decision 1").holds is None
    assert "invalid, not noisy: masks differ" in rule(invalid, "decision 1").text
    assert invalid.level.level == "L0" and "masks differ" in invalid.level.text


def test_2_a_healthy_short_run_does_not_excuse_it(row, cube):
    bad, good = cube([row("baseline", 0.9)]), cube([row("baseline", 0.1)])
    healthy = rule(conclude(bad, series(production={"reward": RISING})), "decision 2")
    assert healthy.holds and "40 steps does not prove" in healthy.text
    assert rule(conclude(good, series(production={"reward": RISING})), "decision 2").holds is False
    sick = rule(conclude(bad, series(production={"reward": RISING[::-1]})), "decision 2")
    assert sick.holds is False and "reward at step" in sick.text
    assert rule(conclude(bad, series(production={"reward": RISING[:5]})), "decision 2").holds is None
    assert rule(conclude(bad), "decision 2").holds is None


@pytest.mark.parametrize(
    ("policy", "update", "third", "fourth"),
    [
        (STEP_EARLY, STEP_LATE, True, False),
        (STEP_LATE, STEP_EARLY, False, True),
        (STEP_EARLY, FLAT, True, False),
        (FLAT, STEP_EARLY, False, True),
        (STEP_EARLY, STEP_EARLY, False, False),
        (FLAT, FLAT, False, False),
    ],
)
@pytest.mark.parametrize("names", [("kl", "grad_norm"), ("clip_fraction", "update_norm")])
def test_3_and_4_what_moves_first_decides(names, policy, update, third, fourth, row, cube):
    told = series(production={names[0]: policy, names[1]: update})
    found = conclude(cube([row("baseline", 0.9)]), told)
    assert (rule(found, "decision 3").holds, rule(found, "decision 4").holds) == (third, fourth)


def test_3_and_4_need_both_series(row, cube):
    found = conclude(cube([row("baseline", 0.9)]), series(production={"kl": STEP_EARLY}))
    assert rule(found, "decision 3").holds is None and "grad_norm" in rule(found, "decision 3").text
    assert rule(conclude(cube([row("baseline", 0.9)])), "decision 4").holds is None


@pytest.mark.parametrize(("over", "holds"), [([3, 0], True), ([3, 2], False), ([0, 0], False), ([3], None)])
def test_5_some_ranks_only_is_distributed_infrastructure(over, holds, row, cube):
    ranks = tuple(
        GroupStat(group=f"tp{i}", active_tokens=9, mismatches=n, mean_abs=0.1, max_abs=0.9, bias=0.0, rms=0.1)
        for i, n in enumerate(over)
    )
    found = rule(conclude(cube([row("baseline", 0.9, edge={"by_rank": ranks})])), "decision 5")
    assert found.holds is holds
    assert ("tp0 of 2 ranks" in found.text) is bool(holds)


def test_6_a_reward_that_rises_and_falls_while_aligned_is_the_algorithm_s(row, cube):
    good, bad = cube([row("baseline", 0.1)]), cube([row("baseline", 0.9)])
    fell = series(production={"reward": COLLAPSE})
    assert rule(conclude(good, fell), "decision 6").holds
    assert rule(conclude(bad, fell), "decision 6").holds is False
    assert rule(conclude(good, series(production={"reward": RISING})), "decision 6").holds is False
    assert rule(conclude(good), "decision 6").holds is None


# --- the ladder ---------------------------------------------------------------------------------------------


def test_the_ladder_stops_at_the_first_level_that_is_enough(row, failed, cube):
    bad = row("baseline", 0.9)
    levels = {
        "": cube([failed("baseline", "TIMEOUT")]),
        "L0": cube([failed("baseline", "ZERO_ACTIVE_TOKENS")]),
        "L1": cube([row("baseline", 0.1), row("a", 0.0, {"k": 1})]),
        "L2": cube([bad, row("a", 0.8, {"k": 1})]),
        "L3": cube([bad, row("a", 0.1, {"k": 1}), row("b", 0.1, {"k": 1, "m": 1})]),
        "L4": cube([bad, row("a", 0.8, {"k": 1}), row("c", 0.8, {"m": 1}), row("b", 0.1, {"k": 1, "m": 1})]),
    }
    for level, made in levels.items():
        assert conclude(made).level.level == level, level
    assert "k" in conclude(levels["L3"]).level.text and conclude(levels["L3"]).level.evidence == ("case-a",)


def test_the_effects_change_the_words_of_a_level_and_never_the_level(row, cube):
    """Failing means that two commands name two levels for one run, or that a lucky token is called a fix."""
    made = cube([row("baseline", 0.9), row("a", 0.1, {"k": 1}), row("b", 0.1, {"m": 1})])
    alone, shown, lucky = (ladder(find_points(made), tested) for tested in (None, {"case-b": True}, {}))
    assert alone.level == shown.level == lucky.level == "L3"
    assert "was not tested here" in alone.text and alone.sets == (("k",), ("m",)) and alone.left == ("m",)
    assert shown.sets == (("m",), ("k",)) and "shown as well" in shown.text, "the one that is shown comes first"
    assert "luck of one token" in lucky.text


def test_a_setting_that_was_never_tried_alone_leaves_the_level_open(row, cube, failed):
    """By hand: k and m together pass; alone k fails, and m was refused. m alone might do: L2, not L4."""
    bad, both = row("baseline", 0.9), row("b", 0.1, {"k": 1, "m": 1})
    tried = cube([bad, row("a", 0.8, {"k": 1}), failed("c", "UNSUPPORTED", delta={"m": 1}), both])
    found = conclude(tried).level
    assert found.level == "L2" and "not changed alone: m" in found.text and found.sets == (("k", "m"),)
    full = cube([bad, row("a", 0.8, {"k": 1}), row("c", 0.8, {"m": 1}), both])
    assert conclude(full).level.level == "L4" and conclude(full).level.left == ()


def test_a_case_with_undeclared_changes_supports_no_level(row, cube):
    """Failing means that a fix is recommended which changed something else as well."""
    bad, clean = row("baseline", 0.9), row("a", 0.1, {"k": 1})
    for field in (
        {"coupled": ({"path": "x"},)},
        {"outside": ("environment.rollout.driver",)},
        {"undeclared": ({"path": "x"},)},
    ):
        found = conclude(cube([bad, evolve(clean, **field)])).level
        assert found.level == "L2" and "only such pass as something undeclared changed with: k" in found.text
    assert conclude(cube([bad, clean])).level.level == "L3"


def test_listed_align_entries_are_no_aligned_reference(row, cube):
    """Failing means that one align entry of many that failed reads as a scoring path that is broken."""
    entries = ({"path": "k", "to": "training"},)
    made = cube([row("baseline", 0.9), row("align k to training", 0.9, {"k": 1}), row("m", 0.1, {"m": 1})])
    made = evolve(made, experiment=dict(made.experiment) | {"align": entries})
    found = conclude(made)
    assert find_points(made).aligned is None and found.level.level == "L3"
    assert found.interpretation[0].holds is None


def test_a_run_of_profiles_names_what_may_stay_different(ladder_run):
    """A12 changes arithmetic and reduction, so it aligns representation alone."""
    local = conclude(ladder_run(A1=0.9, A2=0.9, A3=0.9, A12=0.1, A13=0.9, A23=0.9)).level
    assert local.level == "L3" and "k.representation." in local.text
    assert "What may stay different: k.arithmetic, k.reduction" in local.text
    pair = conclude(ladder_run(A1=0.1, A2=0.9, A3=0.9, A12=0.9, A13=0.9, A23=0.9)).level
    assert pair.level == "L4" and "k.reduction + k.representation" in pair.text
    whole = conclude(ladder_run(A1=0.9, A2=0.9, A3=0.9, A12=0.9, A13=0.9, A23=0.9)).level
    assert whole.level == "L5"
    untried = conclude(ladder_run(A1=0.1, A2=0.9, A3=0.9)).level
    assert untried.level == "L2" and "not aligned alone: k.arithmetic, k.reduction, k.representation" in untried.text


# --- when A4 is due -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ({"A1": 0.1, "A2": 0.1, "A3": 0.1}, ""),
        ({"A1": 0.1, "A2": 0.9, "A3": 0.1}, "reduction alone fails"),
        ({"A1": 0.1, "A3": 0.1}, "class case of reduction is not in the run"),
        ({"A1": 0.1, "A2": 0.1, "A3": 0.1, "production": 0.2}, "production point (A5) passes"),
        ({"A1": 0.1, "A2": 0.1, "A3": 0.1, "production": None}, "production point (A5) was not measured"),
    ],
)
def test_pairs_are_due_only_where_production_fails_and_each_class_passes(points, reason, ladder_run):
    told = why_no_pairs(find_points(ladder_run(**points)))
    assert reason in told and bool(told) == bool(reason)


def test_a_class_that_was_not_measured_is_no_class_that_passes(ladder_run, failed):
    made = ladder_run(A1=0.1, A2=0.1, A3=0.1)
    rows = tuple(failed("A2", "UNSUPPORTED", "no", row.delta) if row.label == "A2" else row for row in made.rows)
    assert "reduction was not measured (UNSUPPORTED: no)" in why_no_pairs(find_points(evolve(made, rows=rows)))


def test_a4_looks_at_the_run_before_it_plans(ladder_run, tmp_path, monkeypatch):
    """Failing means that pairs are run where one class explains the drift, or never."""
    check = expand._check_pairs_are_due
    check("made", None)
    with pytest.raises(NothingSelectedError, match="A4 is skipped: there is no run of A1, A2, A3 and A5"):
        check("made", tmp_path)
    (tmp_path / "made").mkdir()
    due, explained = ladder_run(A1=0.1, A2=0.1, A3=0.1), ladder_run(A1=0.1, A2=0.9, A3=0.1)
    monkeypatch.setattr(load, "load_cube", lambda folder: {tmp_path / "made": due}[folder])
    check("made", tmp_path)
    monkeypatch.setattr(load, "load_cube", lambda _: explained)
    with pytest.raises(NothingSelectedError, match="A4 is skipped: reduction alone fails"):
        check("made", tmp_path)


def test_the_page_takes_its_code_from_production(ladder_run, row, cube):
    made = ladder_run(A1=0.1, A2=0.9, A3=0.1)
    points = find_points(made)
    assert production_status(points, made.rows[0]) is Status.MISMATCH
    assert production_row(points, made.rows[0]).label == "A5" and "production's (A5)" in introduced(points)
    gone = find_points(ladder_run(A1=0.1, production=None))
    assert production_status(gone, made.rows[0]) is Status.CANCELLED and "was not run" in introduced(gone)
    assert production_row(gone, made.rows[0]) is made.rows[0]
    other = find_points(cube([row("baseline", 0.1)]))
    assert production_status(other, row("baseline", 0.1)) is Status.PASS and introduced(other) == ""


def test_every_conclusion_is_a_sentence(ladder_run, again):
    found = conclude(ladder_run(A1=0.1, A2=0.9, A3=0.1), series(A0={"reward": RISING}, A5={"reward": COLLAPSE[:40]}))
    assert [len(found.interpretation), len(found.decisions)] == [5, 6]
    for item in (*found.interpretation, *found.decisions):
        assert item.text[:1].isupper() and item.text.endswith(".")
    assert again(found) == found

"""What is said of a case, on cubes by hand: every outcome, and that nothing is exonerated without cause."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import Handmade, row
from xcfg.schema.codec import evolve
from xcfg.schema.gradient import GradientSummary
from xcfg_analysis.effects.effect import effects, verdict_sums
from xcfg_analysis.effects.exercised import exercised_of
from xcfg_analysis.effects.interactions import interactions
from xcfg_analysis.effects.movement import movement
from xcfg_analysis.effects.yardstick import over, yardstick
from xcfg_analysis.floors.floors import floors, resolution
from xcfg_analysis.page.analysis import analyze_evidence
from xcfg_analysis.page.causes import say
from xcfg_analysis.page.text import text
from xcfg_analysis.show import fixed_lines

SEQUENCES, LENGTH = 12, 40
SEQUENCE = np.repeat(np.arange(SEQUENCES), LENGTH)
RNG = np.random.default_rng(11)
BASE = RNG.normal(0, 0.1, len(SEQUENCE))
HALF = 0.5 * BASE
OTHER = RNG.normal(0, 0.1, len(SEQUENCE))
"""Another draw of the same spread: every value moves, the gap does not."""


def judged(case, *, base=None, differences=None, resolution=None, sequence=SEQUENCE):
    base = base or row("base", BASE)
    known = {"base": BASE, **(differences or {})}
    (effect,) = effects(Handmade(known, sequence, [base, case]), base, [case], resolution or {}).effects
    return effect


def test_a_change_of_the_gap_is_found_with_its_numbers():
    """Half of every difference: mean d^2 falls to a quarter, mean |d| to a half, both by formula."""
    effect = judged(row("half", HALF, {"k": 1}), differences={"half": HALF})
    gap = {item.quantity: item for item in effect.gap}
    assert (effect.outcome, effect.direction) == ("CHANGES_GAP", "narrows")
    assert gap["mean_sq"].baseline == pytest.approx(np.mean(BASE**2), rel=1e-13)
    assert gap["mean_sq"].change.value == pytest.approx(-0.75 * np.mean(BASE**2), rel=1e-12)
    assert gap["mean_abs"].change.value == pytest.approx(-0.5 * np.mean(np.abs(BASE)), rel=1e-12)
    assert gap["k3"].case == pytest.approx(np.mean(np.exp(HALF) - 1 - HALF), rel=1e-12)
    assert gap["mean_sq"].change.low < gap["mean_sq"].change.value < gap["mean_sq"].change.high < 0


def test_every_value_moves_and_no_cause_is_named():
    """Independent errors of one size: the whole side moves, the gap stays. Naming it would send people astray."""
    effect = judged(row("other", OTHER, {"k": 1}), differences={"other": OTHER})
    assert effect.outcome == "NO_CHANGE_SHOWN"
    assert [item.arm for item in effect.movement] == ["training", "rollout_decode"]
    assert effect.movement[0].differing == len(BASE)
    assert effect.movement[0].rms == pytest.approx(np.sqrt(np.mean((OTHER - BASE) ** 2)), rel=1e-12)
    assert "of mean d^2 goes away with it" in effect.reason


def test_equal_bits_exonerate_only_what_was_exercised():
    """Failing means that a setting that never ran is declared innocent."""
    for word, outcome in (("yes", "EXONERATED"), ("no", "NOT_EXERCISED"), ("unknown", "NOT_EXERCISED")):
        case = row("same", BASE, {"k": 1}, digest="base", exercised=word)
        assert judged(case, differences={"same": BASE}).outcome == outcome


def test_an_interval_inside_the_floor_exonerates_and_a_small_change_is_below_it():
    tiny = BASE * (1 + 1e-6 * np.sign(OTHER))
    wide = {"mean_sq": 1.0, "mean_abs": 1.0, "k3": 1.0}
    assert judged(row("t", tiny, {"k": 1}), differences={"t": tiny}, resolution=wide).outcome == "EXONERATED"
    seen = judged(row("o", OTHER, {"k": 1}), differences={"o": OTHER})
    close = {item.quantity: 1.01 * abs(item.change.value) for item in seen.gap}
    assert judged(row("o", OTHER, {"k": 1}), differences={"o": OTHER}, resolution=close).outcome == "BELOW_RESOLUTION"


def test_a_clear_change_that_is_smaller_than_the_floor_names_nothing():
    """Failing means that the analysis sees more than repeating the baseline allows."""
    less = 0.999 * BASE
    clear = judged(row("less", less, {"k": 1}), differences={"less": less})
    assert clear.outcome == "CHANGES_GAP"
    floor = {item.quantity: 2 * abs(item.change.value) for item in clear.gap}
    again = judged(row("less", less, {"k": 1}), differences={"less": less}, resolution=floor)
    assert again.outcome in ("EXONERATED", "BELOW_RESOLUTION")


def test_without_a_floor_no_interval_exonerates():
    tiny = BASE * (1 + 1e-9 * np.sign(OTHER))
    assert judged(row("t", tiny, {"k": 1}), differences={"t": tiny}).outcome == "NO_CHANGE_SHOWN"


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"outside": ("environment.training.version:torch",)}, "OUTSIDE_THE_KNOBS"),
        ({"coupled": ({"path": "x", "side": "training", "baseline": 1, "case": 2},)}, "COUPLED_WITH_OTHER_FACTORS"),
    ],
)
def test_a_change_that_is_not_the_knobs_own_is_not_its(changes, outcome):
    case = row("half", HALF, {"k": 1}, **changes)
    assert judged(case, differences={"half": HALF}).outcome == outcome


def test_a_case_without_figures_says_why():
    effect = judged(row("dead", None, {"k": 1}, status="UNSUPPORTED", reason="no such kernel"))
    assert (effect.outcome, effect.reason) == ("VARIANT_DID_NOT_APPLY", "UNSUPPORTED: no such kernel")


def test_too_few_sequences_have_no_interval():
    """Below the contract's number of sequences there is no interval, whatever the change."""
    few = np.repeat(np.arange(4), len(BASE) // 4)
    effect = judged(row("half", HALF, {"k": 1}), differences={"half": HALF}, sequence=few)
    assert effect.outcome == "INSUFFICIENT_EVIDENCE"
    assert all(item.change is None for item in effect.gap)


def test_the_yardstick_is_the_smaller_threshold_either_way():
    """A case that computes coarser may not pass by its own threshold, one that computes finer has to meet its own."""
    base, coarse, fine = (row(name, BASE, threshold=limit) for name, limit in (("b", 0.2), ("c", 0.4), ("f", 0.1)))
    assert [yardstick(item, base) for item in (coarse, fine)] == [0.2, 0.1]
    evidence = Handmade({"b": BASE, "c": BASE, "f": BASE}, SEQUENCE, [base, coarse, fine])
    assert over(evidence, coarse, 0.2) == int((np.abs(BASE) > 0.2).sum())
    assert over(evidence, row("n", None), 0.2) is None


def test_a_movement_is_told_apart_into_logits_and_sum():
    """Failing means that drift of a head product is reported as that of the log-sum-exp behind it, or the reverse."""
    its, mine = np.array([-1.0, -2.0, np.nan, -4.0]), np.array([-1.5, -2.0, -3.0, -4.25])
    exact = np.array([-1.375, -1.875, -3.0, -9.0]), np.array([-1.0, -2.0, -3.0, -4.0])
    found = movement("training", mine, its, np.array([True, True, True, False]), exact)
    # Token 0: -0.5 = -0.375 + -0.125. Token 1: 0 = 0.125 + -0.125.
    assert found.of_logits == pytest.approx(np.sqrt((0.375**2 + 0.125**2) / 2), rel=1e-12)
    assert found.of_sum == pytest.approx(0.125, rel=1e-12)
    for lacking in ((None, exact[1]), (exact[0], None)):
        one = movement("training", mine, its, np.ones(4, dtype=bool), lacking)
        assert (one.of_logits, one.of_sum) == (None, None)


def test_movement_leaves_out_what_only_one_scored():
    mine, its = np.array([1.0, 2.0, np.nan, 4.0]), np.array([1.0, 2.5, 3.0, 9.0])
    found = movement("training", mine, its, np.array([True, True, True, False]))
    assert (found.tokens, found.differing, found.max_abs, found.mean_abs) == (2, 1, 0.5, 0.25)


def test_exercised_takes_the_better_value_and_the_weaker_side():
    """A cache that is switched off has nothing to do; that the baseline used it is what counts."""

    def with_sides(case_id, **sides):
        item = row(case_id, BASE, {"k": 1})
        cell = type(item.axes["k"])(path="k", requested=1, actual=1, status="applied", exercised="no", sides=sides)
        return row(case_id, BASE, {"k": 1}, axes={"k": cell})

    assert exercised_of(with_sides("c", rollout="no"), with_sides("b", rollout="yes"))[0] == "yes"
    word, why = exercised_of(with_sides("c", rollout="yes", training="no"), with_sides("b", training="unknown"))
    assert (word, "training" in why) == ("unknown", True)


def pair_cube(both):
    base = row("base", BASE)
    one, other = 0.9 * BASE, 0.8 * BASE
    cases = [row("one", one, {"a": 1}), row("two", other, {"b": 1}), row("both", both, {"a": 1, "b": 1})]
    known = {"base": BASE, "one": one, "two": other, "both": both}
    return Handmade(known, SEQUENCE, [base, *cases]), base, cases


def test_an_interaction_is_what_the_two_do_beyond_their_sum():
    evidence, base, cases = pair_cube(0.2 * BASE)
    (found,) = interactions(evidence, base, cases, None)
    squares = np.mean(BASE**2)
    assert found.outcome == "INTERACTION"
    assert found.change.value == pytest.approx((0.2**2 - 0.8**2 - 0.9**2 + 1) * squares, rel=1e-12)
    additive = BASE * np.sqrt(0.8**2 + 0.9**2 - 1)
    (none,) = interactions(*pair_cube(additive), None)
    assert abs(none.change.value) < 1e-15
    assert none.outcome == "NONE_SHOWN"


def test_a_row_of_a_covering_array_names_the_pairs_that_it_cannot_tell_apart():
    """Failing means that a covering array shows no interaction, or that one of its pairs is accused for all."""
    parts = {"a": 0.9, "b": 0.8, "c": 0.7}
    rows = [row(name, scale * BASE, {name: 1}) for name, scale in parts.items()]
    whole = row("all", 0.2 * BASE, dict.fromkeys(parts, 1))
    known = {"base": BASE, "all": 0.2 * BASE} | {name: scale * BASE for name, scale in parts.items()}
    base = row("base", BASE)
    evidence = Handmade(known, SEQUENCE, [base, *rows, whole])
    (found,) = interactions(evidence, base, [*rows, whole], None)
    assert (found.knobs, found.outcome) == (("a", "b", "c"), "INTERACTION")
    assert found.among == (("a", "b"), ("a", "c"), ("b", "c"))
    assert found.cases == ("all", "a", "b", "c", "base")
    assert found.change.value == pytest.approx((0.2**2 - 0.9**2 - 0.8**2 - 0.7**2 + 2) * np.mean(BASE**2), rel=1e-12)
    (below,) = interactions(evidence, base, [*rows, whole], abs(found.change.value) / 5.9)
    assert below.outcome == "BELOW_RESOLUTION", "six figures enter, each as uncertain as the floor"
    pairs = [row(f"{x}{y}", 0.5 * BASE, {x: 1, y: 1}) for x, y in (("a", "b"), ("a", "c"), ("b", "c"))]
    evidence = Handmade(known | {item.case_id: 0.5 * BASE for item in pairs}, SEQUENCE, [base, *rows, whole, *pairs])
    apart = interactions(evidence, base, [*rows, whole, *pairs], None)
    assert [item.knobs for item in apart] == [("a", "b"), ("a", "c"), ("b", "c")] and not any(i.among for i in apart)
    assert interactions(evidence, base, [*rows[:2], whole], None) == (), "one single change was not measured"


def controls_cube(rows, **planned):
    known = {"base": BASE} | {item.case_id: d for item, d in rows}
    base = row("base", BASE, pids=(10,), claims={"deterministic_algorithms": True})
    evidence = Handmade(known, SEQUENCE, [base, *(item for item, _ in rows)], controls=planned)
    return {item.kind: item for item in floors(evidence, base, evidence.cube.rows)}


def test_floors_stand_apart_and_the_largest_counts():
    noisy, quiet = BASE + 0.01 * OTHER, BASE.copy()
    found = controls_cube(
        [
            (row("r", quiet, role="repeat", index=1, pids=(10,)), quiet),
            (row("f", noisy, role="fresh", index=1, pids=(11,)), noisy),
        ],
        repeats=1,
        fresh_processes=1,
        cold=1,
    )
    assert [found[kind].status for kind in ("repeat", "fresh", "shuffled", "cold")] == [
        "measured",
        "measured",
        "not_planned",
        "not_run",
    ]
    expected = abs(np.mean(noisy**2) - np.mean(BASE**2))
    assert found["repeat"].gap["mean_sq"] == 0.0
    assert found["fresh"].gap["mean_sq"] == pytest.approx(expected, rel=1e-9)
    assert resolution(list(found.values()))["mean_sq"] == found["fresh"].gap["mean_sq"]
    assert found["repeat"].own_process is True
    assert found["fresh"].own_process is True
    assert "never ended" in found["cold"].reason


def test_a_fresh_control_of_a_used_process_is_no_floor():
    """Failing means that a floor of two fresh processes was measured in one."""
    again = [(row(f"f{i}", BASE, role="fresh", index=i, pids=(11,)), BASE) for i in (1, 2)]
    found = controls_cube(again, fresh_processes=2)["fresh"]
    assert (found.status, found.own_process) == ("invalid", False)
    assert "process 11" in found.reason
    assert resolution([found]) == {}


def test_a_cache_that_nobody_set_is_no_floor_of_it():
    """Failing means that a runtime which ignores a control of its cache gives a floor of it."""

    def control(kind, mechanism):
        rows = [(row("c", BASE, role=kind, index=1, pids=(10,), mechanism=mechanism), BASE)]
        return controls_cube(rows, **{kind: 1})[kind]

    for mechanism in ({}, {"cache": {"control": "cold", "brought_tokens": 4}}):
        found = control("warm", mechanism)
        assert (found.status, resolution([found])) == ("invalid", {})
        assert "no engine says" in found.reason
    warm = {"cache": {"control": "warm", "brought_tokens": 48}}
    assert (control("warm", warm).status, control("warm", warm).reason) == ("measured", "48 tokens came from the cache")
    idle = {"cache": {"control": "warm", "brought_tokens": 0}}
    assert "warming it showed nothing" in control("warm", idle).reason
    assert control("cold", {"cache": {"control": "cold", "brought_tokens": 0}}).status == "measured"


def test_the_baseline_again_at_the_end_is_a_floor_of_its_own():
    """Failing means that the drift of a machine over a run is not seen, or that its middle is taken for its end."""
    drifted = BASE + 0.01 * OTHER
    rows = [(row("z", drifted, role="at_end", index=1, pids=(10,)), drifted)]
    found = controls_cube(rows, at_end=1)["at_end"]
    assert found.gap["mean_sq"] == pytest.approx(abs(np.mean(drifted**2) - np.mean(BASE**2)), rel=1e-9)
    assert (found.status, found.reason) == ("measured", "") and "claims deterministic_algorithms" in found.finding
    assert resolution([found])["mean_sq"] == found.gap["mean_sq"]
    grown = [(row("c", drifted, role="at_end", index=1), drifted), (row("z", HALF, {"k": 1}), HALF)]
    assert "'k=1' among them: raise controls.at_end" in controls_cube(grown, at_end=1)["at_end"].reason


def test_a_floor_above_zero_is_a_finding_where_the_runtime_claims_determinism():
    noisy = BASE + 0.01 * OTHER
    found = controls_cube([(row("r", noisy, role="repeat", index=1, pids=(10,)), noisy)], repeats=1)["repeat"]
    assert "training claims deterministic_algorithms" in found.finding
    equal = controls_cube([(row("r", BASE, role="repeat", index=1, pids=(10,)), BASE)], repeats=1)["repeat"]
    assert equal.finding == ""


def test_processes_that_nobody_reported_prove_nothing():
    found = controls_cube([(row("f", BASE, role="fresh", index=1, pids=()), BASE)], fresh_processes=1)["fresh"]
    assert found.own_process is None
    assert "did not report its process" in found.reason


def test_of_several_values_the_least_certain_decides():
    """Failing means that one harmless value of a knob exonerates all of them."""
    base = row("base", BASE)
    cases = [row("same", BASE, {"k": 1}, digest="base"), row("other", OTHER, {"k": 2})]
    evidence = Handmade({"base": BASE, "same": BASE, "other": OTHER}, SEQUENCE, [base, *cases])
    found = effects(evidence, base, cases, {})
    assert say(found.effects, base, {}, 0.05).lists["unresolved"] == ("k",)
    assert found.family == 3, "equal bits are no test"


def test_the_page_says_everything_once():
    base = row("base", BASE, status="MISMATCH")
    cases = [
        row("half", HALF, {"training.x": 1}),
        row("same", BASE, {"training.y": 1}, digest="base"),
        row("lazy", BASE, {"training.z": 1}, digest="base", exercised="no"),
        row("dead", None, {"training.w": 1}, status="UNSUPPORTED", reason="no"),
    ]
    known = {"base": BASE, "half": HALF, "same": BASE, "lazy": BASE}
    found = analyze_evidence(Handmade(known, SEQUENCE, [base, *cases]))
    assert [cause.knob for cause in found.causes] == ["training.x"]
    assert (found.exonerated, found.not_exercised, found.not_measured) == (
        ("training.y",),
        ("training.z",),
        ("training.w",),
    )
    assert found.exit_code == 1
    shown = text(found)
    for word in ("exonerated", "not exercised", "not measured", "refuted by", "evidence"):
        assert word in shown
    heads = [line.split()[0] if line[:7] in ("VERDICT", "ASSESSM") else line for line in shown.splitlines()]
    golden = ["VERDICT", "ASSESSMENT", "LIKELY CAUSE", "WHAT IT LOOKS LIKE", "WHAT IT IS NOT", "SMALLEST CHANGE"]
    golden += ["EVIDENCE", "NEXT"]
    assert [line for line in heads if line.isupper()] == golden, "the order in which a tired person reads"
    cause = shown[shown.index("LIKELY CAUSE") : shown.index("WHAT IT LOOKS LIKE")].splitlines()
    assert cause[1].split() == ["CAUSE", "training.x", "(both):", "CAUSED_BY_BOTH_SIDES"]
    assert shown.splitlines()[-1].strip() == found.next_command


def test_knobs_that_are_fixed_for_one_reason_share_a_line():
    """Failing means that a page repeats one sentence for every option of a backend, and nobody reads the others."""
    stated = ("a.x: it acts on one side: always", "b.y: no map", "c.z: it acts on one side: always")
    lines = ["cannot be aligned: a.x, c.z: it acts on one side: always", "cannot be aligned: b.y: no map"]
    assert fixed_lines(stated) == lines
    base = row("base", BASE)
    found = evolve(analyze_evidence(Handmade({"base": BASE}, SEQUENCE, [base])), not_alignable=stated)
    assert text(found).count("cannot be aligned") == 2


def test_a_baseline_without_figures_has_no_effects():
    base = row("base", None, status="WORKER_FAILED", reason="it crashed")
    found = analyze_evidence(Handmade({}, SEQUENCE, [base, row("half", HALF, {"k": 1})]))
    assert (found.exit_code, found.effects) == (4, ())
    assert "it crashed" in found.conclusion
    assert verdict_sums(Handmade({}, SEQUENCE, [base]), base) is None


def test_a_pair_that_closes_what_each_alone_opens_is_the_cause():
    """Failing means that a pure interaction reads as two settings to leave alone, and nothing to change."""
    base, wide = row("base", BASE), 3 * BASE
    known = {"base": BASE, "x": wide, "y": wide, "xy": HALF}
    cases = [
        row("x", wide, {"training.x": 1}),
        row("y", wide, {"training.y": 1}),
        row("xy", HALF, {"training.x": 1, "training.y": 1}),
    ]
    found = analyze_evidence(Handmade(known, SEQUENCE, [base, *cases]))
    assert [(cause.knob, cause.direction) for cause in found.causes] == [
        ("training.x + training.y", "narrows"),
        ("training.x", "widens"),
        ("training.y", "widens"),
    ]
    assert [cause.diagnosis for cause in found.causes] == ["CAUSED_BY_BOTH_SIDES", "", ""]


def test_what_opens_the_gap_further_accuses_no_side():
    """Failing means that a side is called the cause of a gap which it only makes larger when it is changed."""
    base, wide = row("base", BASE), 3 * BASE
    cases = [row("x", wide, {"training.x": 1})]
    evidence = Handmade({"base": BASE, "x": wide}, SEQUENCE, [base, *cases])
    (cause,) = analyze_evidence(evidence).causes
    assert (cause.direction, cause.diagnosis) == ("widens", "")
    assert "EFFECT     training.x (both): widens the gap" in text(analyze_evidence(evidence))
    for status, code in (("PASS", 0), ("MISMATCH", 1)):
        judged = row("base", BASE, status=status)
        found = analyze_evidence(Handmade({"base": BASE, "x": wide}, SEQUENCE, [judged, *cases]))
        assert (found.exit_code, [item.direction for item in found.causes]) == (code, ["widens"])
    judged = effects(evidence, base, cases, {}).effects
    (in_profile,) = say(judged, base, {}, 0.05, profiles=True).causes
    assert in_profile.diagnosis.startswith("CAUSED_BY")
    (acquitted,) = say(judged, base, {}, 0.05, profiles=True, acquitted=True).causes
    assert (acquitted.direction, acquitted.diagnosis) == ("widens", ""), "production passes, and rounding explains it"


def test_a_gradient_that_a_score_looked_at_is_on_the_page():
    """If this fails, a case without any drift hides that its training learns from another gradient."""
    said = GradientSummary(rows=32, broken_rows=0, max_abs=1.25e-3, rel_l2=2e-3, ran={"grad_downcast_at": "dlogits"})
    base, case = row("base", BASE), row("rounded", BASE, {"k": 1}, digest="base")
    case = evolve(case, arms=case.arms | {"training": evolve(case.arms["training"], gradient=said)})
    plain = analyze_evidence(Handmade({"base": BASE}, SEQUENCE, [base]))
    assert plain.gradients == {} and "gradient" not in text(plain)
    found = analyze_evidence(Handmade({"base": BASE, "rounded": BASE}, SEQUENCE, [base, case]))
    assert found.gradients == {"k=1": {"training": said}}
    (line,) = [line for line in text(found).splitlines() if "grad_downcast_at" in line]
    assert line.split() == ["k=1", "training", "0.00125", "0.002", "32", "0", "grad_downcast_at=dlogits"]
    assert found.exit_code == plain.exit_code, "nothing judges a gradient"

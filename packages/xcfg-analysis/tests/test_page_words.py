"""What the page says in words is true of its figures, on cubes by hand."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import Handmade, row
from xcfg.schema.analysis import Effect, GapChange
from xcfg.schema.codec import evolve
from xcfg.schema.result import AssessmentResult, Interval
from xcfg_analysis.page.analysis import analyze_evidence
from xcfg_analysis.page.causes import says
from xcfg_analysis.page.text import text

SEQUENCE = np.repeat(np.arange(12), 40)
RNG = np.random.default_rng(11)
BASE, OTHER = RNG.normal(0, 0.1, len(SEQUENCE)), RNG.normal(0, 0.1, len(SEQUENCE))


@pytest.mark.parametrize(
    ("case", "shown"),
    [
        (0.5e-12, "mean d^2 1e-12 -> 5e-13 nats^2 (-50%)"),
        (9e-12, "mean d^2 1e-12 -> 9e-12 nats^2 (+800%)"),
        (4.0e-6, "mean d^2 1e-12 -> 4e-06 nats^2 (4e+06 times as large)"),
    ],
)
def test_a_change_from_nearly_nothing_is_a_factor(case, shown):
    """Failing means percentages of ten digits, which nobody can read."""
    change = GapChange(quantity="mean_sq", baseline=1e-12, case=case)
    effect = Effect(case_id="c", label="k=1", knobs=("k",), side="training", outcome="CHANGES_GAP")
    assert says(effect, change) == f"k=1: {shown}"


def test_the_conclusion_counts_cases_and_says_how_many_tests_were_made_of_them():
    """Failing means that a run of two changes speaks of six: each case is tested by three figures."""
    base = row("base", BASE)
    cases = [row("o", OTHER, {"k": 1}), row("p", -OTHER, {"k": 2}), row("same", BASE, {"j": 1}, digest="base")]
    known = {"base": BASE, "o": OTHER, "p": -OTHER, "same": BASE}
    found = analyze_evidence(Handmade(known, SEQUENCE, [base, *cases]))
    assert found.families["gap changes"] == 6
    assert "among the 2 cases that were tested (6 tests, one for each figure of the gap)" in found.conclusion
    found = analyze_evidence(Handmade(known, SEQUENCE, [base, cases[0], cases[2]]))
    assert "among the one case that was tested (3 tests" in found.conclusion


def test_the_step_to_controls_denies_no_exoneration_on_the_same_page():
    """Failing means a list of what is exonerated above a line that says nothing can be."""
    base, same = row("base", BASE), row("same", BASE, {"k": 1}, digest="base")
    found = analyze_evidence(Handmade({"base": BASE, "same": BASE}, SEQUENCE, [base, same]))
    assert found.exonerated == ("k",)
    assert found.next_step == "add controls: without one only equal bits exonerate, and no interval can"


def test_the_page_names_once_where_the_ratios_are_explained():
    """Failing means that a reader meets an error over a budget, and no word on what the budget is."""
    ratio = Interval(value=1813.0, low=1800.0, high=1820.0)
    said = AssessmentResult(assessment="EXCESS_TRAINING", r_training=ratio, r_rollout=ratio, r_gap=ratio)
    base = row("base", BASE, assessment=said)
    found = analyze_evidence(Handmade({"base": BASE}, SEQUENCE, [base]))
    assert text(found).count("docs/explanation/precision-budget.md") == 1
    without = evolve(found, assessed=AssessmentResult(assessment="NO_REFERENCE", reason="no reference"))
    assert "precision-budget" not in text(without)

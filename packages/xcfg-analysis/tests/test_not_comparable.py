"""A case that ran and is no evidence, on cubes by hand: no figure is shown for it, and it acquits nothing."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import EDGE, Handmade, row
from xcfg.schema.codec import evolve
from xcfg_analysis.effects.effect import effects
from xcfg_analysis.page.analysis import analyze_evidence
from xcfg_analysis.page.causes import Said
from xcfg_analysis.page.conclusion import conclusion
from xcfg_analysis.page.text import text

SEQUENCE = np.repeat(np.arange(12), 40)
BASE = np.random.default_rng(11).normal(0, 0.1, len(SEQUENCE))
RAN = ("INVALID_IDENTITY", "INVALID_ARTIFACT", "NOT_COMPARABLE", "ZERO_ACTIVE_TOKENS", "EMPTY_JOIN")


def scored(case_id, status, delta, reason="other ids"):
    """A case whose scores are stored, and whose comparison holds no figure."""
    whole = row(case_id, 2 * BASE, delta, status=status, reason=reason)
    return evolve(whole, edges={}, verdict_edge="", threshold=None)


def looked(*cases, **known):
    base = row("base", BASE, status="PASS")
    differences = {"base": BASE, **{item.case_id: 2 * BASE for item in cases}, **known}
    return Handmade(differences, SEQUENCE, [base, *cases]), base


@pytest.mark.parametrize("status", RAN)
def test_a_case_that_ran_without_figures_is_not_comparable_and_moves_nothing(status):
    """Failing means that a page says of a setting that it did not run, or shows nats between two different inputs."""
    case = scored("shift", status, {"training.x": 1})
    evidence, base = looked(case)
    (effect,) = effects(evidence, base, [case], {}).effects
    assert (effect.outcome, effect.reason) == ("NOT_COMPARABLE", f"{status}: other ids")
    assert (effect.movement, effect.gap, effect.over) == ((), (), None)
    found = analyze_evidence(evidence)
    assert (found.not_comparable, found.not_measured, found.exonerated) == (("training.x",), (), ())
    (line,) = [line.split() for line in text(found).splitlines() if line.startswith("training.x=1")]
    assert line == ["training.x=1", "NOT_COMPARABLE", *"-----"]


def test_the_page_says_that_identity_differs():
    """Failing means that the reader looks for a fault in the setting, and not in what the sides were given."""
    evidence, _ = looked(scored("shift", "INVALID_IDENTITY", {"training.x": 1}))
    assert "training.x (INVALID_IDENTITY: identity differs)" in " ".join(text(analyze_evidence(evidence)).split())


def test_a_setting_that_did_not_run_is_still_said_not_to_have_run():
    """Failing means that a refused value reads as one that ran."""
    case = scored("dead", "FALLBACK", {"training.x": 1}, "another kernel")
    evidence, base = looked(case)
    (effect,) = effects(evidence, base, [case], {}).effects
    assert (effect.outcome, effect.movement) == ("VARIANT_DID_NOT_APPLY", ())


def test_a_verdict_without_a_number_has_no_count():
    """Failing means that scores which are no log probabilities read as 0 tokens over the threshold."""
    whole = row("base", BASE, status="INVALID_ARTIFACT", reason="training: 3 scores lie above 0")
    spoilt = evolve(whole, edges={EDGE: evolve(whole.edges[EDGE], max_abs=None, rms=None)})
    said = conclusion(spoilt, Said((), {}), family=0, outside=())
    assert said.startswith("INVALID_ARTIFACT (training: 3 scores lie above 0), NO_REFERENCE.")
    assert "0 of" not in said


@pytest.mark.parametrize("status", ["NOT_COMPARABLE", "INVALID_ARTIFACT"])
def test_a_case_that_is_no_evidence_exonerates_nothing(status):
    """Failing means that equal bits, or an interval within the floor, acquit a setting whose case does not count."""
    same = row("same", BASE, {"training.x": 1}, digest="base", status=status, reason="sides pad unequally")
    near = row("near", BASE * (1 + 1e-6), {"training.y": 1}, status=status, reason="sides pad unequally")
    evidence, base = looked(same, near, same=BASE, near=BASE * (1 + 1e-6))
    wide = {"mean_sq": 1.0, "mean_abs": 1.0, "k3": 1.0}
    for effect in effects(evidence, base, [same, near], wide).effects:
        assert (effect.outcome, effect.reason) == ("NOT_COMPARABLE", f"{status}: sides pad unequally")
    assert "training.x" not in analyze_evidence(evidence).exonerated

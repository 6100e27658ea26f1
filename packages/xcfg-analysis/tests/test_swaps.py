"""The nine diagnoses, each from a cube in which everything else is in order, and one real run."""

from __future__ import annotations

import numpy as np
import pytest
from xcfg.schema.codec import evolve
from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.page.analysis import analyze_evidence
from xcfg_analysis.page.text import text
from xcfg_analysis.samples.interval import IntervalRule
from xcfg_analysis.swaps.diagnosis import Diagnosis
from xcfg_analysis.swaps.find import find_swaps

RULE = IntervalRule(level=0.95, seed=1, min_sequences=8)
RNG = np.random.default_rng(0)
BASE = RNG.uniform(0.9, 1.1, 16)
LESS, SAME, MORE = BASE * 0.2, BASE * RNG.uniform(0.9, 1.1, 16), BASE * 3
BACKEND = "xcfg.reference_logp"
KEYS = {"training": ("training",), "rollout": ("rollout",), "both": ("rollout", "training")}
MOVED = {"training": ("T", "r"), "rollout": ("t", "R"), "both": ("T", "R")}


@pytest.fixture
def swap(cubes):
    """swap(training, rollout, both, **changes): the one swap of a cube; changes: cell -> facts of its row."""

    def make(training, rollout, both, /, *, resolution=0.0, leave_out=(), **changes):
        rows = [cubes.row(BASE)]
        for name, squares in (("training", training), ("rollout", rollout), ("both", both)):
            keys = {f"operators.selected_logprob.{side}": BACKEND for side in KEYS[name]}
            facts = {"digests": MOVED[name], "operators": keys} | changes.get(name, {})
            if name not in leave_out:
                rows.append(cubes.row(squares, keys, **facts))
        (found,) = find_swaps(cubes.cube(*rows), rule=RULE, resolution=resolution)
        return found

    return make


def test_the_training_side(swap):
    found = swap(LESS, SAME, LESS)
    assert found.diagnosis is Diagnosis.CAUSED_BY_TRAINING_SIDE
    assert (found.cause.side, found.cause.knob) == ("training", "operators.selected_logprob")
    assert found.cause.effect == pytest.approx((LESS.sum() - BASE.sum()) / 160)
    assert found.cause.interval.high < 0 and len(found.cause.evidence) == 4


def test_the_rollout_side(swap):
    found = swap(MORE, LESS, LESS)
    assert found.diagnosis is Diagnosis.CAUSED_BY_ROLLOUT_SIDE and found.cause.side == "rollout"


def test_both_sides_either_alone_or_only_together(swap):
    assert swap(BASE * 0.6, BASE * 0.5, LESS).diagnosis is Diagnosis.CAUSED_BY_BOTH_SIDES
    together = swap(SAME, MORE, LESS)
    assert together.diagnosis is Diagnosis.CAUSED_BY_BOTH_SIDES and "together only" in together.says


def test_a_reference_that_makes_it_worse_is_broken(swap):
    assert swap(MORE, MORE, MORE).diagnosis is Diagnosis.REFERENCE_IS_BROKEN
    assert swap(LESS, SAME, MORE).diagnosis is Diagnosis.REFERENCE_IS_BROKEN


def test_a_gap_that_comes_back_is_coupled(swap):
    found = swap(LESS, SAME, SAME)
    assert found.diagnosis is Diagnosis.COUPLED_WITH_OTHER_FACTORS


@pytest.mark.parametrize("cell", ["training", "rollout", "both"])
@pytest.mark.parametrize(
    "change",
    [
        {"coupled": ({"path": "rollout.enforce_eager", "side": "rollout"},)},
        {"outside": ("runtime_options.rollout.seed",)},
    ],
)
def test_what_else_changed_is_coupled(swap, cell, change):
    """Failing means that a knob is blamed for what another one did."""
    assert swap(LESS, SAME, LESS, **{cell: change}).diagnosis is Diagnosis.COUPLED_WITH_OTHER_FACTORS


def test_the_shortcut_follows_the_operators(swap):
    follows = {"coupled": ({"path": "logp.backend", "side": "training"},)}
    assert swap(LESS, SAME, LESS, training=follows).diagnosis is Diagnosis.CAUSED_BY_TRAINING_SIDE


@pytest.mark.parametrize("cell", ["training", "rollout", "both"])
@pytest.mark.parametrize("change", [{"applied": "fallback"}, {"applied": ""}, {"exercised": "no"}])
def test_a_variant_that_is_not_shown_to_have_run(swap, cell, change):
    assert swap(LESS, SAME, LESS, **{cell: change}).diagnosis is Diagnosis.VARIANT_DID_NOT_APPLY


def test_a_fallback_that_ended_its_case_did_not_apply(swap):
    change = {"status": "FALLBACK", "applied": "fallback"}
    assert swap(None, SAME, LESS, training=change).diagnosis is Diagnosis.VARIANT_DID_NOT_APPLY


@pytest.mark.parametrize("cell", ["training", "rollout", "both"])
def test_a_cell_that_is_not_there_is_too_little(swap, cell):
    found = swap(LESS, SAME, LESS, leave_out=(cell,))
    assert found.diagnosis is Diagnosis.INSUFFICIENT_EVIDENCE and "did not run" in found.says
    assert found.cause.side == ""


def test_a_cell_that_failed_or_has_few_sequences_is_too_little(swap, cubes):
    assert swap(None, SAME, LESS, training={"status": "TIMEOUT"}).diagnosis is Diagnosis.INSUFFICIENT_EVIDENCE
    assert swap(LESS[:7], SAME, LESS).diagnosis is Diagnosis.INSUFFICIENT_EVIDENCE


def test_bits_that_do_not_move_are_not_this_factor(swap):
    still = {name: {"digests": ("t", "r")} for name in ("training", "rollout", "both")}
    assert swap(BASE, BASE, BASE, **still).diagnosis is Diagnosis.NOT_THIS_FACTOR


def test_changes_inside_the_floor_are_not_this_factor(swap):
    assert swap(SAME, SAME, SAME, resolution=0.05).diagnosis is Diagnosis.NOT_THIS_FACTOR


def test_an_error_that_both_sides_share_is_not_this_factor(swap):
    """Both natives err alike: replacing one makes the sides differ, and replacing both changes nothing."""
    assert swap(MORE, MORE, SAME).diagnosis is Diagnosis.NOT_THIS_FACTOR


def test_room_for_a_change_that_nobody_can_see(swap):
    assert swap(SAME, SAME, SAME).diagnosis is Diagnosis.BELOW_RESOLUTION


def test_a_change_smaller_than_the_floor_blames_nobody(swap):
    """Failing means that what repeating the baseline does is called a cause."""
    assert swap(BASE * 0.9, SAME, BASE * 0.9).diagnosis is Diagnosis.CAUSED_BY_TRAINING_SIDE
    assert swap(BASE * 0.9, SAME, BASE * 0.9, resolution=0.05).diagnosis is Diagnosis.NOT_THIS_FACTOR


def test_a_change_that_falls_to_the_correction_blames_nobody(swap):
    """Failing means that of many swaps that do nothing one is called a cause, by chance."""
    noise = np.random.default_rng(3).normal(size=16)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    slight = BASE - 0.0375 + 0.05 * noise  # by itself p is 0.035, of three cells 0.11
    found = swap(slight, SAME, slight)
    assert found.cells["training"].change.high < 0 and not found.cells["training"].stands
    assert found.p_values["training"] == pytest.approx(0.106, abs=0.02)
    assert found.diagnosis is Diagnosis.BELOW_RESOLUTION
    assert found.cause.p_value == found.p_values["both"]


def test_a_self_check_that_shows_nothing_is_no_coupling(swap):
    """Failing means that a wide interval is read as a gap that came back."""
    wide = BASE + np.where(np.arange(16) % 2, 0.6, -0.8)
    found = swap(BASE * 0.95, SAME, wide)
    assert found.diagnosis is Diagnosis.INSUFFICIENT_EVIDENCE and "neither" in found.says
    assert found.cells["both"].change.low < found.cells["training"].change.value < 0


def test_other_tokens_are_not_paired(cubes):
    """Failing means that a swap gains by what it left out."""
    rows = [cubes.row(BASE)]
    for name, sides in KEYS.items():
        keys = {f"operators.selected_logprob.{side}": BACKEND for side in sides}
        rows.append(cubes.row(LESS, keys, digests=MOVED[name], operators=keys))
    edge = rows[1].edges[rows[1].verdict_edge]
    fewer = tuple(evolve(item, active_tokens=item.active_tokens - 1) for item in edge.by_sequence)
    rows[1] = evolve(rows[1], edges={rows[1].verdict_edge: evolve(edge, by_sequence=fewer)})
    (found,) = find_swaps(cubes.cube(*rows), rule=RULE)
    assert found.diagnosis is Diagnosis.INSUFFICIENT_EVIDENCE and "other tokens" in found.says


def test_rows_that_change_more_than_the_operator_are_no_cell(cubes):
    key = "operators.selected_logprob.training"
    rows = [cubes.row(BASE), cubes.row(LESS, {key: BACKEND, "batch.size": 2}, operators={key: BACKEND})]
    assert find_swaps(cubes.cube(*rows), rule=RULE) == ()


def test_the_shortcut_on_both_sides_is_the_self_check(cubes):
    both = {f"operators.selected_logprob.{side}": BACKEND for side in ("rollout", "training")}
    rows = [cubes.row(BASE), cubes.row(LESS, {"logp.backend": BACKEND}, operators=both)]
    (found,) = find_swaps(cubes.cube(*rows), rule=RULE)
    assert found.cells["both"].case_id and not found.cells["training"].case_id


def test_a_real_swap_on_the_tiny_model(manager, runs, tmp_path):
    """The reference log-softmax against torch's own, on both sides: applied, exercised, and no cause of this gap."""
    import xcfg

    file = runs.write_experiment(
        tmp_path,
        experiment_id="swap",
        strategy="pairwise",
        pairwise_paths=[["operators.selected_logprob.training", "operators.selected_logprob.rollout"]],
        interventions=[
            {"path": "operators.selected_logprob.training", "values": ["reference"]},
            {"path": "operators.selected_logprob.rollout", "values": ["reference"]},
        ],
        controls={"reference": False},
    )
    summary = xcfg.run(file, plugins=manager, output_root=tmp_path / "runs")
    assert len(summary.cases) == 4
    evidence = Evidence.open(tmp_path / "runs" / "swap", plugins=manager)
    (found,) = find_swaps(evidence.cube, evidence, rule=IntervalRule.of(evidence.run.contract.assessment))
    assert found.operation == "selected_logprob"
    assert all(cell.case_id and not cell.lacking and not cell.unapplied for cell in found.cells.values()), found
    assert all(cell.moved and cell.change is not None for cell in found.cells.values()), found
    gap = evidence.cube.baseline.edges["training_vs_rollout"].rms ** 2
    assert all(abs(cell.change.value) < 0.01 * gap for cell in found.cells.values()), found
    assert found.diagnosis in (Diagnosis.BELOW_RESOLUTION, Diagnosis.NOT_THIS_FACTOR), found
    (shown,) = analyze_evidence(evidence).swaps
    assert (shown.diagnosis, shown.value, len(shown.evidence)) == (found.diagnosis.value, "reference", 4)
    assert f"SWAP operators.selected_logprob to reference: {found.diagnosis.value}" in text(analyze_evidence(evidence))

"""`xcfg analyze` of real runs: what it finds where the fault is known, and what it leaves in the store."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import xcfg
from xcfg.cli.main import main
from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.page.analysis import analyze_evidence, analyze_run


@pytest.fixture(scope="module")
def found(grid, manager):
    return analyze_run(grid, plugins=manager)


def test_a_run_leaves_its_analysis_in_the_store(grid, found):
    """Failing means that `xcfg run` forgets to say why, or that its analysis is another than the one asked for."""
    (file,) = (grid / "analysis").iterdir()
    assert json.loads(file.read_text())["schema_version"] == "xcfg.analysis.v1"
    assert json.loads(file.read_text())["conclusion"] == found.conclusion
    assert all(check.ok for check in xcfg.verify(grid, seals_only=True).attempts)


def test_movement_and_gap_change_of_a_real_case_by_formula(grid, manager, found):
    evidence = Evidence.open(grid, plugins=manager)
    eager = next(item for item in found.effects if item.label == "training.attention_backend=eager")
    rows = {row.label: row for row in evidence.cube.rows}
    base, case = rows["baseline"], rows[eager.label]
    moved = (evidence.scores(case, "training") - evidence.scores(base, "training"))[evidence.active]
    (movement,) = eager.movement
    assert movement.rms == pytest.approx(np.sqrt(np.mean(moved**2)), rel=1e-12)
    assert movement.differing == np.count_nonzero(moved)
    rollout = evidence.scores(base, "rollout_decode")[evidence.active]
    squares = [np.mean((evidence.scores(row, "training")[evidence.active] - rollout) ** 2) for row in (base, case)]
    change = next(item for item in eager.gap if item.quantity == "mean_sq").change
    assert change.value == pytest.approx(squares[1] - squares[0], rel=1e-9)


def test_every_knob_stands_in_one_place(found):
    named = [cause.knob for cause in found.causes]
    lists = ("exonerated", "not_exercised", "below_resolution", "unresolved", "not_measured")
    everything = named + [knob for name in lists for knob in getattr(found, name)]
    alone = {item.knobs[0] for item in found.effects if len(item.knobs) == 1}
    assert sorted(everything) == sorted(alone)


def test_controls_are_reported_apart(found):
    kinds = {item.kind: item for item in found.floors}
    assert kinds["repeat"].status == kinds["fresh"].status == kinds["shuffled"].status == "measured"
    assert kinds["repeat"].own_process is True
    assert kinds["fresh"].own_process is True
    assert (kinds["cold"].status, kinds["warm"].status) == ("not_run", "not_planned")
    assert "UNSUPPORTED" in kinds["cold"].reason and "neither runtime declares a cache" in kinds["cold"].reason
    assert (kinds["at_end"].status, kinds["at_end"].reason) == ("measured", "")
    for name, value in found.resolution.items():
        assert value == max(item.gap[name] for item in kinds.values() if item.gap)


def test_the_command_prints_the_verdict_first(grid, found, capsys, monkeypatch):
    monkeypatch.chdir(grid.parent.parent)
    assert main(["analyze", str(grid)]) == found.exit_code
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("VERDICT")
    assert lines[2].startswith("ASSESSMENT")
    assert "NEXT" in lines[-5:] and lines[-1].strip() == found.next_command
    assert main(["analyze", str(grid), "--json"]) == found.exit_code
    assert json.loads(capsys.readouterr().out)["experiment_id"] == "grid"
    assert main(["analyze", str(grid), "--redact"]) == 2
    assert "--redact belongs to dumps" in capsys.readouterr().err


def test_known_noise_comes_back_as_the_floor_of_repeats(runs, planted, tmp_path):
    """Two draws of noise of one rms lie sqrt(2) of it apart. Failing means a floor that was served from a cache.

    The noise is seeded by the number of the call, so that a fresh process repeats the baseline's: the two floors
    differ, and the larger one counts.
    """
    file = runs.write_experiment(tmp_path, **runs.NOISY)
    xcfg.run(file, plugins=planted, output_root=tmp_path / "runs")
    found = analyze_run(tmp_path / "runs" / "noisy", plugins=planted)
    kinds = {item.kind: item for item in found.floors}
    moved = {item.arm: item for item in kinds["repeat"].movement}
    assert moved["training"].rms / np.sqrt(2) == pytest.approx(runs.NOISE, rel=0.2)
    assert moved["rollout_decode"].rms == 0.0
    assert all(item.rms == 0.0 for item in kinds["fresh"].movement)
    assert found.resolution["mean_sq"] == kinds["repeat"].gap["mean_sq"] > 0


def test_a_fault_outside_the_declared_knobs_is_said_to_be_outside(tempered):
    before, _, _ = tempered
    assert before.assessment == "EXCESS_TRAINING"
    assert before.causes == ()
    assert "outside what was varied" in before.outside[0]
    assert "vary operators.selected_logprob.training = native" in before.next_step


def test_the_planted_cause_is_named_and_nothing_else(tempered):
    _, after, _ = tempered
    (cause,) = after.causes
    assert (cause.knob, cause.side, cause.diagnosis, cause.direction) == (
        "operators.selected_logprob.training",
        "training",
        "CAUSED_BY_TRAINING_SIDE",
        "narrows",
    )
    assert cause.interval.high < 0
    assert set(cause.evidence) <= {item.case_id for item in after.effects} | {after.evidence["baseline"]}
    assert after.ladder_level == "L3"
    assert after.outside == ()
    blamed, _, cured = after.conclusion.partition("Likely cause: ")[2].partition("; narrower with ")
    assert blamed.startswith("operators.selected_logprob.training=") and "0.7" in blamed, "production's value"
    assert cured.startswith("operators.selected_logprob.training=") and "0.7" not in cured, "the value of the case"
    assert after.next_step.startswith("operators.selected_logprob.training=native is enough for 'explained'")


def test_a_grid_that_grew_keeps_both_analyses(tempered):
    _, _, folder = tempered
    assert len(list((folder / "analysis").iterdir())) == 2
    assert all(check.ok for check in xcfg.verify(folder, seals_only=True).attempts)


def test_other_surroundings_are_no_effect(tempered, planted, tmp_path):
    """A case that ran under another version than the baseline names no cause, however clear its change."""
    _, _, folder = tempered
    evidence = Evidence.open(folder, plugins=planted)
    rows = tuple(
        row if not row.delta else type(row)(**{f: getattr(row, f) for f in row.__struct_fields__} | {"outside": ("x",)})
        for row in evidence.cube.rows
    )
    evidence.__dict__["cube"] = type(evidence.cube)(
        **{f: getattr(evidence.cube, f) for f in evidence.cube.__struct_fields__} | {"rows": rows}
    )
    found = analyze_evidence(evidence)
    assert found.causes == ()
    assert {item.outcome for item in found.effects} == {"OUTSIDE_THE_KNOBS"}


def test_a_run_that_takes_nothing_is_still_analysed(grid, tmp_path, capsys, monkeypatch):
    """Somebody else's run on a disk that takes nothing: the page is printed, and stderr says that it was not kept."""
    from xcfg.errors import ExecutionError

    copy = tmp_path / "grid"
    shutil.copytree(grid, copy)

    def full(*_):
        raise ExecutionError("the disk is full")

    monkeypatch.setattr("xcfg.artifacts.store.Store.put_analysis", full)
    main(["analyze", str(copy)])
    shown = capsys.readouterr()
    assert "VERDICT" in shown.out
    assert "was not kept: the disk is full" in shown.err

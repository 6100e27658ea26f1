"""The page of three real runs: nobody to blame, one cause, two that are needed together; and its next commands."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from pathlib import Path

import click
import pytest
import xcfg
from xcfg.cli._output import Session
from xcfg.cli.main import cli, main
from xcfg.identity.rollout import read_rollout
from xcfg.schema.codec import evolve
from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.page.analysis import analyze_run, look_at
from xcfg_analysis.page.text import text

HEADS = (
    "LIKELY CAUSE",
    "WHAT IT LOOKS LIKE",
    "WHAT IT IS NOT",
    "SMALLEST CHANGE",
    "RULES THAT HOLD",
    "EVIDENCE",
    "NEXT",
)


@pytest.fixture(scope="module")
def opposed(runs, planted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("opposed")
    file = runs.write_experiment(folder, **runs.OPPOSED)
    xcfg.run(file, plugins=planted, output_root=folder / "runs")
    return folder / "runs" / "opposed"


def section(page, name):
    """Return the lines of one section, joined and without line breaks."""
    lines = page.splitlines()
    start = lines.index(name) + 1
    stop = next((at for at in range(start, len(lines)) if lines[at] in HEADS), len(lines))
    return " ".join(" ".join(lines[start:stop]).split())


def check_parses(command):
    """Every command of a line is one that `xcfg` takes, with these options."""
    context = click.Context(cli, obj=Session())
    for part in command.split("; "):
        program, name, *words = shlex.split(part)
        assert program == "xcfg"
        found = cli.get_command(context, name)
        assert found is not None, name
        with contextlib.suppress(click.exceptions.Exit), found.make_context(name, words, parent=context):
            pass  # Exit: --help was asked for


def test_a_clean_run_blames_nobody(grid, manager):
    found = analyze_run(grid, plugins=manager)
    page = text(found)
    assert [line for line in page.splitlines() if line in HEADS] == [head for head in HEADS if head in page]
    assert section(page, "LIKELY CAUSE").startswith("none: honest rounding explains the gap")
    assert "CAUSE " not in section(page, "LIKELY CAUSE")
    assert section(page, "SMALLEST CHANGE").startswith("level L1: Production satisfies the contract")
    assert found.ladder_level == "L1" and found.minimal_sets == () and found.signatures == ()
    assert {item.name for item in found.insufficient_data} >= {"padded-vocabulary", "temperature"}
    assert found.fitted_tokens == found.tokens == 384
    check_parses(found.next_command)


def test_one_cause_with_its_signature_and_its_cure(tempered):
    """A temperature of 0.7 in one operator, with the columns that its signature needs."""
    before, after, _ = tempered
    page = text(after)
    cause = section(page, "LIKELY CAUSE")
    assert cause.startswith("CAUSE operators.selected_logprob.training (training): CAUSED_BY_TRAINING_SIDE")
    assert "refuted by:" in cause and "evidence:" in cause
    smallest = section(page, "SMALLEST CHANGE")
    assert smallest.startswith("asked 'explained': honest rounding explains what is left of the gap enough For ")
    assert "For 'explained', operators.selected_logprob.training=native is enough" in smallest
    assert "threshold L3: One local change is enough" in smallest and "change of its gap is shown" in smallest
    assert "What may stay different: batch.size, training.attention_backend." in smallest
    assert "decision 1:" in section(page, "RULES THAT HOLD")
    assert after.rules.level.level == after.ladder_level == "L3"
    assert after.next_command.startswith("xcfg freeze --checkpoint builtin:tiny-qwen3-512 --prompts prompts.jsonl ")
    check_parses(after.next_command)
    assert section(text(before), "LIKELY CAUSE").startswith("none found: no change")
    assert "OUTSIDE the declared knobs" in section(text(before), "LIKELY CAUSE")


def test_the_fault_is_recognised_from_the_scores_of_the_run(tempered, grid, manager):
    """The tempered run stored the entropy of its training scores, the clean one did not."""
    before, _, _ = tempered
    (named,) = [item for item in before.signatures if item.name == "temperature"]
    assert named.confidence > 0.99 and named.explained > 0.9 and named.evidence[0].training != named.evidence[0].rollout
    assert 0.65 < named.parameters["temperature_training_over_rollout"] < 0.8, (
        "linear in its size: 0.7 comes out as 0.77"
    )
    shown = section(text(before), "WHAT IT LOOKS LIKE")
    assert shown.startswith("SIGNATURE temperature: confidence") and "refuted by:" in shown and "fix:" in shown
    assert "it looks like temperature" in before.conclusion
    assert "temperature" in {item.name for item in analyze_run(grid, plugins=manager).insufficient_data}


def test_two_changes_that_are_needed_together(opposed, planted, capsys):
    found = analyze_run(opposed, plugins=planted)
    page = text(found)
    pair = ("operators.selected_logprob.rollout", "operators.selected_logprob.training")
    assert (found.ladder_level, found.minimal_sets, found.left_enabled) == ("L4", (pair,), ("batch.size",))
    assert "No single change is enough, and together these are" in section(page, "SMALLEST CHANGE")
    assert "INTERACTION" in section(page, "EVIDENCE")
    check_parses(found.next_command)
    main(["gate", str(opposed), "--json"])
    assert json.loads(capsys.readouterr().out)["ladder_level"] == found.ladder_level, "one ladder for both"


@pytest.mark.usefixtures("planted")
def test_the_next_command_is_executed_and_does_what_it_says(tempered, runs, monkeypatch, tmp_path, capsys):
    """Failing means that a tired person pastes the last line of a page, and gets an error or old tokens."""
    _, after, _ = tempered
    monkeypatch.chdir(tmp_path)
    shutil.copy(runs.EXAMPLE / "tiny-prompts.jsonl", "prompts.jsonl")
    check_parses(after.next_command)
    assert main(shlex.split(after.next_command)[1:]) == 0
    assert "frozen 12 sequences, 384 active tokens" in capsys.readouterr().out
    (ids, before) = (read_rollout(place).token_ids for place in (Path("tempered-other"), runs.EXAMPLE / "tiny-rollout"))
    assert ids.tolist() != before.tolist(), "other sequences"


def test_every_next_command_parses(grid, manager, monkeypatch, tmp_path):
    """Each branch, forced on one real run by what its evidence holds."""
    monkeypatch.chdir(tmp_path)

    def forced(edit):
        evidence = Evidence.open(grid, plugins=manager)
        evidence.__dict__["cube"] = edit(evidence.cube)
        looked = look_at(evidence)
        check_parses(looked.analysis.next_command)
        check_parses(looked.seen_from(tmp_path).next_command)
        return looked.analysis, looked.following(tmp_path)

    assert forced(lambda cube: cube)[1].changes is None
    _, gone = forced(lambda cube: evolve(cube, missing=("a",)))
    assert gone.changes == {} and "1 planned cases have no valid attempt" in gone.step
    _, alone = forced(lambda cube: evolve(cube, rows=tuple(row for row in cube.rows if row.role == "case")))
    assert alone.changes == {"controls": {"repeats": 1, "fresh_processes": 2, "shuffled": 1}}
    none, step = forced(lambda cube: evolve(cube, rows=cube.rows[1:]))
    assert none.status == "CANCELLED" and step.command == f"xcfg verify {shlex.quote(str(grid))}"
    two, _ = forced(lambda cube: evolve(cube, others=("a/b",)))
    assert two.next_command.startswith("xcfg gate runs/grid ") and "--runtimes torch/torch" in two.next_command


def test_the_experiment_to_run_next_is_the_same_with_more(grid, tmp_path, monkeypatch, capsys):
    """Its plan holds every case of the run under the same id, and what is added; nothing is overwritten."""
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "runs" / "grid"
    shutil.copytree(grid, copy)
    for folder in (copy / "cases").iterdir():
        seal = json.loads(next(folder.glob("attempt-*/requested.json")).read_text())
        if seal["delta"] == {"batch.size": 2}:
            shutil.rmtree(folder)
    assert main(["analyze", "runs/grid", "--next", "next.json"]) in (0, 1, 3)
    told = capsys.readouterr().out
    assert "1 planned cases have no valid attempt" in told and told.endswith("wrote next.json\n")
    planned = [json.loads(line)["case_id"] for line in (copy / "plan.jsonl").read_text().splitlines()]
    assert [case.case_id for case in xcfg.plan("next.json").cases] == planned
    assert main(["analyze", "runs/grid", "--next", "next.json"]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["analyze", str(grid), "--next", "other.json"]) == 2
    assert "the next step is no run of this experiment" in capsys.readouterr().err


def test_raw_logits_of_both_sides_are_no_pass(runs, planted, tmp_path, monkeypatch, capsys):
    """Both sides forgot the softmax, and agree: INVALID_ARTIFACT, exit 3, and a page that says so."""
    monkeypatch.chdir(tmp_path)
    raw = {"rollout": "planted.raw_logit", "training": "planted.raw_logit"}
    changes = {"interventions": [], "operators": {"selected_logprob": raw}, "controls": {"reference": False}}
    file = runs.write_experiment(tmp_path, experiment_id="raw", **changes)
    summary = xcfg.run(file, plugins=planted, output_root=tmp_path / "runs")
    assert (summary.cases[0].status, summary.exit_code) == ("INVALID_ARTIFACT", 3)
    assert main(["analyze", "runs/raw"]) == 3
    page = capsys.readouterr().out
    assert "raw logits?" in page and "VERDICT    INVALID_ARTIFACT" in page
    check_parses(page.splitlines()[-1].strip())


def test_the_folder_of_all_runs_is_answered_with_their_names(grid, capsys):
    """Failing means that the commonest slip is told of dumps, and no run is named."""
    assert main(["analyze", str(grid.parent)]) == 2
    told = capsys.readouterr().err
    assert "is no folder of a run" in told and grid.name in told

"""`xcfg minimize` on real runs of the embedded runtime over the tiny model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import xcfg
from xcfg.cli.main import main
from xcfg.errors import InterruptedRunError, NothingSelectedError
from xcfg_analysis.cube.load import load_cube
from xcfg_analysis.minimize.journey import minimize_experiment, minimize_run

MIXED = {
    "batch": {"size": 4},
    "rollout": {"dtype": "bfloat16", "attention_backend": "sdpa"},
    "training": {"compute_dtype": "float32", "attention_backend": "eager", "sharding": "unsharded"},
}
ALIGN = [
    {"path": "rollout.attention_backend", "to": "training"},
    {"path": "rollout.dtype", "to": "training"},
    {"path": "batch.size", "to": "training"},
]
DTYPE, ATTENTION = "align rollout.dtype to training", "align rollout.attention_backend to training"
BASE = {"baseline": MIXED, "interventions": [], "align": ALIGN, "controls": {"reference": False, "repeats": 1}}


@pytest.fixture(scope="module")
def searched(runs, manager, tmp_path_factory):
    """(file, output root, document, events) of one search."""
    folder = tmp_path_factory.mktemp("minimize")
    file = runs.write_experiment(folder, experiment_id="mixed", **BASE)
    events = []
    options = {"output_root": folder / "runs", "on_event": events.append}
    found = minimize_experiment(file, "reduction>=99%", budget=8, plugins=manager, options=options)
    return file, folder / "runs", found, events


def scored(events):
    return [event["label"] for event in events if event["event"] == "score"]


def test_the_dtype_is_what_has_to_be_aligned(searched):
    """Failing means that a search over real scores does not find the difference that was put in."""
    _, root, found, _ = searched
    assert found.minimal_sets == ((DTYPE,),)
    (asked,) = [trial for trial in found.minimization.trials if not trial.align]
    (production,) = [item for item in xcfg.iter_cases(root / "mixed") if item.attempt.seal.case_id == asked.case_id]
    tokens, judged = production.tokens(), production.comparison.verdict_edge
    over = np.abs(tokens[f"{judged}__first"] - tokens[f"{judged}__second"])[tokens[f"{judged}__mask"]] > 0.06
    status = "MISMATCH" if over.any() else "PASS"  # some processors round bfloat16 products closer than others
    assert (found.ladder_level, found.exit_code, found.status) == ("L3", 1, status)
    ran = found.minimization
    assert ran.strategy == "exhaustive" and ran.complete and ran.sets[0].minimal
    assert {trial.align: trial.outcome for trial in ran.trials} == {
        (): "fails",
        (DTYPE,): "meets",
        (ATTENTION,): "fails",
    }
    assert "rollout.attention_backend" in found.left_enabled and "rollout.dtype" not in found.left_enabled
    assert any(line.startswith("training.sharding: ") for line in found.not_alignable)
    assert any("equal already" in note for note in ran.notes)
    assert ran.sets[0].time is not None and ran.sets[0].time > 0


def test_its_number_is_that_of_the_sealed_scores(searched):
    """Failing means that a document says other figures than its evidence: mean d^2 from the tensors, by hand."""
    _, root, found, _ = searched
    means = {}
    for case in xcfg.iter_cases(root / "mixed"):
        tokens, edge = case.tokens(), case.comparison.verdict_edge
        d = (tokens[f"{edge}__first"].astype(float) - tokens[f"{edge}__second"].astype(float))[tokens[f"{edge}__mask"]]
        means[case.attempt.seal.case_id] = float((d * d).mean())
    (production,) = [trial for trial in found.minimization.trials if not trial.align]
    for trial in found.minimization.trials[1:]:
        assert trial.value == pytest.approx(1 - means[trial.case_id] / means[production.case_id], rel=1e-9)
        assert trial.interval.low <= trial.value <= trial.interval.high


def test_a_training_score_that_all_share_is_made_once(searched):
    """Failing means that a search scores both sides of every set."""
    assert [label for label in scored(searched[3]) if label.endswith("· training")] == ["baseline · training"]


def test_the_evidence_is_sealed_and_the_newest_revision_is_the_whole_search(searched, manager):
    _, root, found, _ = searched
    assert all(check.ok for check in xcfg.verify(root).attempts)
    cube = load_cube(root / "mixed", plugins=manager)
    assert {row.case_id for row in cube.rows} == {trial.case_id for trial in found.minimization.trials}
    kept = [json.loads(path.read_text()) for path in (root / "mixed" / "analysis").iterdir()]
    assert [
        item["minimal_sets"] for item in kept if (item.get("minimization") or {}).get("strategy", "grid") != "grid"
    ] == [[[DTYPE]]]


def test_the_same_command_again_scores_nothing(searched, manager):
    """Failing means that a search that was killed begins anew."""
    file, root, found, _ = searched
    events = []
    again = minimize_experiment(
        file, "reduction>=99%", budget=8, plugins=manager, options={"output_root": root, "on_event": events.append}
    )
    assert scored(events) == [] and again == found


def test_another_objective_over_the_same_scores(searched, manager, capsys):
    file, root, _, _ = searched
    assert main(["minimize", str(file), "--objective", "k3<=1e9", "--output-root", str(root), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == "xcfg.analysis.v1"
    assert (document["minimal_sets"], document["ladder_level"]) == ([[]], "L1")
    assert main(["minimize", str(file), "--objective", "k3<=0", "--output-root", str(root)]) == 1
    shown = capsys.readouterr().out
    assert "Nothing that can be aligned here is enough" in shown and "PASS" not in shown


def test_a_folder_is_read_and_nothing_is_scored(searched, manager):
    _, root, found, _ = searched
    before = sorted(path for path in (root / "mixed").rglob("*"))
    read = minimize_run(root / "mixed", "reduction>=99%", plugins=manager)
    assert sorted(path for path in (root / "mixed").rglob("*")) == before
    assert read.minimal_sets == (("rollout.dtype=float32",),)
    values = {trial.case_id: trial.value for trial in read.minimization.trials}
    assert {trial.case_id: values[trial.case_id] for trial in found.minimization.trials} == {
        trial.case_id: trial.value for trial in found.minimization.trials
    }


def test_a_repeat_of_an_engine_without_noise_is_not_repeated_again(searched, manager):
    """Failing means that repeats are spent on what they cannot change, or that what is open is called decided."""
    file, root, _, _ = searched
    options = {"output_root": root}
    first = minimize_experiment(file, "k3<=0", budget=1, plugins=manager, options=options)
    value = first.minimization.trials[0].value
    again = minimize_experiment(file, f"k3<={value!r}", budget=1, repeats=5, plugins=manager, options=options)
    (open_,) = again.minimization.trials
    assert (open_.outcome, open_.repeats, open_.value) == ("UNRESOLVED", 1, value)
    assert "equal bit for bit" in open_.reason
    assert again.exit_code == 3 and "UNRESOLVED" in again.conclusion


def test_delta_debugging_where_the_budget_is_small(searched, manager):
    file, root, _, _ = searched
    found = minimize_experiment(file, "reduction>=99%", budget=3, plugins=manager, options={"output_root": root})
    assert found.minimization.strategy == "ddmin" and found.minimal_sets == ((DTYPE,),)
    assert found.minimization.sets[0].minimal


def test_an_interrupted_search_goes_on_where_it_stopped(runs, manager, tmp_path):
    """Failing means that Ctrl-C loses scores, or that a search concludes from half of its sets."""
    file = runs.write_experiment(tmp_path, experiment_id="stopped", **(BASE | {"align": ALIGN[1:2]}))
    root, seen = tmp_path / "runs", []

    def stop(event):
        seen.append(event)
        if event["event"] == "score" and event["label"].startswith("align"):
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError, match="interrupted"):
        minimize_experiment(
            file, "reduction>=99%", budget=2, plugins=manager, options={"output_root": root, "on_event": stop}
        )
    before, events = scored(seen), []
    options = {"output_root": root, "on_event": events.append}
    found = minimize_experiment(file, "reduction>=99%", budget=2, plugins=manager, options=options)
    assert found.minimal_sets == ((DTYPE,),) and found.minimization.complete
    assert not set(scored(events)) & set(before[:-1]) and scored(events)[0] == before[-1]
    assert all(check.ok for check in xcfg.verify(root).attempts)


def test_no_resume_scores_everything_again_and_each_score_once(runs, manager, tmp_path):
    """Failing means that what a search has just made is made again by its next batch, or that older scores serve."""
    file = runs.write_experiment(tmp_path, experiment_id="anew", **(BASE | {"align": ALIGN[1:2]}))
    made = []
    for resume in (True, False, True):
        events = []
        options = {"output_root": tmp_path / "runs", "on_event": events.append, "resume": resume}
        found = minimize_experiment(file, "reduction>=99%", budget=2, plugins=manager, options=options)
        assert found.minimal_sets == ((DTYPE,),)
        made.append(sorted(scored(events)))
    first, again, resumed = made
    assert again == first and len(set(first)) == len(first) == 6 and resumed == []
    attempts = [len(list(case.iterdir())) for case in (tmp_path / "runs" / "anew" / "cases").iterdir()]
    assert attempts == [2, 2], "the judgements of both searches are kept"


def test_engines_live_from_batch_to_batch(runs, manager, tmp_path):
    """Failing means that every batch of a search starts its engines, or the imports of one, anew."""
    file = runs.write_experiment(tmp_path, experiment_id="alive", **(BASE | {"align": ALIGN[1:2]}))
    events, processes = [], set()

    def see(event):
        events.append(event)
        found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        processes.update(
            pid for pid in found if b"xcfg.running.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )

    options = {"output_root": tmp_path / "runs", "on_event": see, "max_workers": 4}
    first = minimize_experiment(file, "k3<=0", budget=1, plugins=manager, options=options)
    value = first.minimization.trials[0].value
    events.clear()
    processes.clear()
    options["resume"] = False
    again = minimize_experiment(file, f"k3<={value!r}", budget=1, repeats=1, plugins=manager, options=options)
    assert again.minimization.trials[0].repeats == 1, "the repeat is a batch of its own"
    kinds = [event["event"] for event in events if event["event"] in ("worker_started", "score_done")]
    assert kinds.count("worker_started") == 2 and kinds.count("score_done") == 6, "one engine for each side"
    assert len(processes) == 1, "one process has imported torch, and every worker is forked from it"
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()], "nothing outlives the search"


def test_without_an_align_entry_there_is_nothing_to_minimize(runs, manager, tmp_path):
    file = runs.write_experiment(tmp_path, experiment_id="plain", interventions=[])
    with pytest.raises(NothingSelectedError, match="no `align` entry"):
        minimize_experiment(file, "verdict", budget=4, plugins=manager)


def test_a_production_point_that_cannot_run_ends_the_search(runs, tmp_path, capsys):
    """Failing means that every set is scored although nothing can be said of any."""
    baseline = MIXED | {"rollout": {"dtype": "bfloat16", "attention_backend": "flash_attention_2"}}
    file = runs.write_experiment(tmp_path, experiment_id="broken", **(BASE | {"baseline": baseline}))
    code = main(["minimize", str(file), "--objective", "verdict", "--output-root", str(tmp_path / "runs"), "--json"])
    error = json.loads(capsys.readouterr().out)
    assert code == error["exit_code"] == 3 and "UNSUPPORTED" in error["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--objective", "fast"],
        ["--objective", "verdict", "--budget", "0"],
        ["--objective", "verdict", "--budget", "4096", "--repeats", "1"],
        [],
    ],
)
def test_a_wrong_command_is_refused_before_anything_is_loaded(arguments, tmp_path):
    assert main(["minimize", str(tmp_path / "nothing.json"), *arguments]) == 2

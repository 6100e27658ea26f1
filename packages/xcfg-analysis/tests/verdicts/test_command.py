"""`xcfg run --profile` and `xcfg gate` on a real run of the embedded runtime, from file to exit code."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
from xcfg.artifacts.layout import copy_of
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import CaseFacts
from xcfg.cli.main import main
from xcfg.schema.names import Status

TINY = Path(__file__).resolve().parents[4] / "examples" / "quickstart"
BASELINE = {
    "batch": {"size": 8},
    "rollout": {"dtype": "float32", "attention_backend": "eager"},
    "training": {"compute_dtype": "float32", "attention_backend": "sdpa"},
}


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with a run of A0, A1 and A5, in which the sides differ in attention alone; made once."""
    folder = tmp_path_factory.mktemp("gate")
    shutil.copytree(TINY / "tiny-rollout", folder / "tiny-rollout")
    document = json.loads((TINY / "tiny.json").read_text()) | {"experiment_id": "att", "baseline": BASELINE}
    document |= {"interventions": [], "controls": {"reference": False}}
    (folder / "att.json").write_text(json.dumps(document))
    words = ["run", str(folder / "att.json"), "--profile", "A0-A5", "--output-root", str(folder / "runs"), "--json"]
    done = subprocess.run([sys.executable, "-m", "xcfg", *words], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr + done.stdout
    (folder / "run.json").write_text(done.stdout)
    return folder


@pytest.fixture
def run(place):
    return str(place / "runs" / "att-profiles")


def gate(capsys, *words):
    code = main(["gate", *map(str, words)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_run_that_passes_opens_the_gate_and_writes_everything(run, tmp_path, capsys, monkeypatch):
    step = tmp_path / "step.md"
    step.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    names = {name: tmp_path / "new" / name for name in ("junit", "summary", "metrics")}
    words = [part for name, path in names.items() for part in (f"--{name}", path)]
    code, out, _ = gate(capsys, run, "--json", *words)
    document = json.loads(out)
    assert main(["schema", "gate"]) == 0
    jsonschema.validate(document, json.loads(capsys.readouterr().out))
    assert (code, document["exit_code"], document["schema_version"], document["ladder_level"]) == (
        0,
        0,
        "xcfg.gate.v1",
        "L1",
    )
    assert [case["label"] for case in document["cases"]] == ["baseline", "rollout.attention_backend=eager"]
    assert document["cases"][1]["slices"] == ["A1", "A5"]
    suites = [suite.get("name") for suite in ET.parse(names["junit"]).getroot()]
    assert suites == ["run", "A0", "A1", "A5"]
    assert step.read_text() == "before\n" + names["summary"].read_text() + "\n"
    assert json.loads(names["metrics"].read_text())["xcfg/gate/exit_code"] == 0.0


def test_the_baseline_of_a_run_holds_it_and_not_one_that_was_edited(run, tmp_path, capsys):
    path = tmp_path / "b.json"
    code, out, _ = gate(capsys, run, "--write-baseline", path)
    assert code == 0 and f"wrote the baseline {path}" in out
    assert main(["schema", "gate_baseline"]) == 0
    jsonschema.validate(json.loads(path.read_text()), json.loads(capsys.readouterr().out))
    assert gate(capsys, run, "--baseline", path)[0] == 0
    document = json.loads(path.read_text())
    document["cases"]["baseline"]["figures"]["rms"] |= {"low": 1.0, "high": 2.0}
    path.write_text(json.dumps(document))
    code, out, _ = gate(capsys, run, "--baseline", path)
    assert code == 1 and "below_corridor" in out
    document["cases"]["gone"] = document["cases"]["baseline"]
    path.write_text(json.dumps(document))
    code, out, _ = gate(capsys, run, "--baseline", path)
    assert code == 3 and "'gone' is planned, or in the baseline" in out


def test_a_folder_that_the_run_did_not_leave_closes_the_gate(place, run, tmp_path, capsys):
    """Failing means that a pipeline whose run broke before it began is green on last week's numbers."""
    said = json.loads((place / "run.json").read_text())
    assert gate(capsys, run, "--after", place / "run.json")[0] == 0
    first, *rest = said["cases"]
    other = {
        "stale_run": said | {"cases": [first | {"attempt_id": "attempt-9"}, *rest]},
        "of another experiment": said | {"experiment_id": "other"},
        "a case less": said | {"cases": rest},
        "interrupted": said | {"exit_code": 130},
        "an error": {"schema_version": "xcfg.error.v1", "kind": "identity", "message": "m", "hint": "", "exit_code": 3},
    }
    path, baseline = tmp_path / "run.json", tmp_path / "b.json"
    for name, document in other.items():
        path.write_text(json.dumps(document))
        code, out, _ = gate(capsys, run, "--after", path)
        assert code == 3 and ("stale_run" in out or "run_failed" in out), name
        assert gate(capsys, run, "--after", path, "--write-baseline", baseline)[0] == 3 and not baseline.exists()
    path.write_text("{}")
    assert gate(capsys, run, "--after", path)[0] == 2
    path.write_text("")
    assert gate(capsys, run, "--after", path)[0] == 2, "what a killed run printed"


def test_the_gate_judges_the_plan_of_the_run_that_ended(place, tmp_path, capsys):
    """Failing means that a slice which ran again is judged by the plan of another slice in the same folder."""
    copy = tmp_path / "att-profiles"
    shutil.copytree(place / "runs" / "att-profiles", copy)
    store = Store(tmp_path, "att-profiles")
    (whole,) = store.revisions()
    store.open_experiment(whole.record.experiment, whole.plan()[:1], whole.record.identity)
    counted = []
    for words in ((), ("--after", place / "run.json")):
        code, out, _ = gate(capsys, copy, "--json", *words)
        counted.append((code, len(json.loads(out)["cases"])))
    assert counted == [(0, 1), (0, 2)]


def test_a_deleted_case_closes_the_gate(place, tmp_path, capsys):
    """Failing means that removing what failed makes a pipeline green."""
    copy = tmp_path / "att-profiles"
    shutil.copytree(place / "runs" / "att-profiles", copy)
    last = sorted((copy / "cases").iterdir())[-1]
    shutil.rmtree(last)
    code, out, _ = gate(capsys, copy, "--junit", tmp_path / "j.xml")
    assert code == 3 and "missing_case" in out
    for folder in (copy / "cases").iterdir():
        shutil.rmtree(folder)
    code, out, _ = gate(capsys, copy, "--junit", tmp_path / "j.xml")
    assert code == 3
    root = ET.parse(tmp_path / "j.xml").getroot()
    assert root.get("errors") == "1" and root.get("tests") == "1"


def test_altered_evidence_closes_the_gate(place, tmp_path, capsys):
    copy = tmp_path / "att-profiles"
    shutil.copytree(place / "runs" / "att-profiles", copy)
    for file in copy.glob("cases/*/*/comparison.json"):
        file.chmod(0o644)
        file.write_text(file.read_text().replace('"PASS"', '"MISMATCH"'))
    assert gate(capsys, copy)[0] == 3


def test_what_is_no_run_is_a_usage_error(place, tmp_path, capsys):
    assert gate(capsys, place / "runs")[0] == 2
    junit, summary = tmp_path / "j.xml", tmp_path / "s.md"
    junit.write_text("<testsuites tests='1' errors='0'/>")  # of last time, and green
    assert gate(capsys, tmp_path / "nothing", "--junit", junit, "--summary", summary)[0] == 2
    root = ET.parse(junit).getroot()
    assert root.get("errors") == "1" and "there is no run to judge (exit 2" in summary.read_text()
    assert gate(capsys, place / "runs" / "att-profiles", "--baseline", tmp_path / "none.json")[0] == 2
    assert gate(capsys, place / "runs" / "att-profiles", "--corridor-percent", "5")[0] == 2
    path = tmp_path / "b.json"
    assert gate(capsys, place / "runs" / "att-profiles", "--write-baseline", path)[0] == 0
    code, _, error = gate(capsys, place / "runs" / "att-profiles", "--baseline", path, "--write-baseline", path)
    assert code == 2 and "beside it" in error


def test_a_downstream_series_changes_no_code(run, tmp_path, capsys):
    series = tmp_path / "s.csv"
    rows = [f"A5,{step},{3.0 - 0.3 * (step - 30) if step > 30 else 0.1 * step}" for step in range(41)]
    series.write_text("case,step,reward\n" + "\n".join(rows) + "\n")
    code, out, _ = gate(capsys, run, "--downstream", series)
    assert code == 0 and "interpretation 5: Pre-update alignment is clean" in out
    assert "decision 6" in out and "severity" not in out
    rows += [f"A0,{step},{0.1 * step + 1}" for step in range(41)]
    series.write_text("case,step,reward\n" + "\n".join(rows) + "\n")
    code, out, _ = gate(capsys, run, "--downstream", series)
    assert code == 0 and "severity 1: reward of A5 is worse than A0: shift " in out
    series.write_text("case,step,reward\n" + "\n".join(row.replace("A0", "A1") for row in rows) + "\n")
    code, out, _ = gate(capsys, run, "--downstream", series)
    assert code == 0 and "severity is not ranked: no case of the series is called 'A0'" in out


def test_rules_and_severity_stand_on_the_page_and_in_the_document(run, tmp_path, capsys):
    """Failing means that the page of a run and its gate tell two stories."""
    series = tmp_path / "s.csv"
    rows = [f"A5,{step},{3.0 - 0.3 * (step - 30) if step > 30 else 0.1 * step}" for step in range(41)]
    rows += [f"A0,{step},{0.1 * step + 1}" for step in range(41)]
    series.write_text("case,step,reward\n" + "\n".join(rows) + "\n")
    code = main(["analyze", run, "--downstream", str(series)])
    page = " ".join(capsys.readouterr().out.split())
    assert "RULES THAT HOLD interpretation 5: Pre-update alignment is clean" in page
    assert "severity 1: reward of A5 is worse than A0: shift " in page
    assert main(["analyze", run, "--downstream", str(series), "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["rules"]["severity"][0]["worse"] and document["status"] == "PASS"
    assert main(["gate", run, "--downstream", str(series), "--json"]) == 0
    gated = json.loads(capsys.readouterr().out)
    assert gated["ladder_level"] == document["ladder_level"] == document["rules"]["level"]["level"]
    held = [item["text"] for key in ("interpretation", "decisions") for item in document["rules"][key] if item["holds"]]
    assert held and all(any(text in line for line in gated["conclusions"]) for text in held)


def test_a4_is_skipped_with_the_reason(place, capsys):
    """Production passes here, so no pair has to run; without an earlier run that is said too."""
    words = ["run", str(place / "att.json"), "--profile", "A4", "--output-root"]
    assert main([*words, str(place / "runs")]) == 3
    assert "do not differ in two classes" in capsys.readouterr().err


def test_the_page_of_a_run_of_profiles_speaks_of_production(run, capsys):
    """Failing means that the pass of the aligned reference is read as the pass of production."""
    code = main(["analyze", run, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (code, document["ladder_level"]) == (0, "L1")
    assert document["conclusion"].startswith("The verdict is production's (A5); each case is held against A0")
    assert document["evidence"]["production"] != document["evidence"]["baseline"]
    assert len(document["rules"]["interpretation"]) == 5 and len(document["rules"]["decisions"]) == 6


def test_an_older_attempt_does_not_stand_for_a_newer_one_that_is_altered_or_gone(place, tmp_path, capsys):
    """Failing means that a number which somebody edited away is replaced by an older one, without a word."""
    shutil.copytree(place / "runs", tmp_path / "runs")
    folder = tmp_path / "runs" / "att-profiles"
    store = Store(folder.parent, folder.name)
    case = store.case_ids()[0]
    (first,) = store.attempts(case).valid
    links = {copy_of(arm, first.seal.files): store.find_score(key) for arm, key in first.seal.scores.items()}
    files = {name: first.path / name for name in first.seal.files if name not in links}
    facts = {name: getattr(first.seal, name) for name in CaseFacts.__dataclass_fields__ if name != "status"}
    second = store.put_attempt(case, CaseFacts(status=Status(first.seal.status), **facts), files, links)
    assert second.path.name == "attempt-0002"
    store.put_ended(first.seal.experiment, {case: second.path.name})
    assert gate(capsys, folder)[0] == 0
    kept = tmp_path / "kept.json"
    assert gate(capsys, folder, "--write-baseline", kept, "--corridor-percent", "5")[0] == 0
    file = second.path / "comparison.json"
    file.write_bytes(file.read_bytes() + b" ")
    for said in ("altered: comparison.json", "missing: it was sealed and is gone"):
        code, out, _ = gate(capsys, folder, "--baseline", kept)
        assert code == 3 and "run: altered_evidence: A newer attempt does not count: " in out and said in out
        code, _, err = gate(capsys, folder, "--write-baseline", tmp_path / "new.json", "--corridor-percent", "5")
        assert code == 3 and said in err and not (tmp_path / "new.json").exists()
        assert main(["cube", str(folder)]) == 0
        assert said in capsys.readouterr().out
        assert main(["analyze", str(folder), "--json"]) == 1
        assert said in json.loads(capsys.readouterr().out)["findings"][0]
        main(["minimize", str(folder), "--objective", "verdict", "--json"])
        assert any(said in note for note in json.loads(capsys.readouterr().out)["minimization"]["notes"])
        if second.path.exists():
            shutil.rmtree(second.path)


@pytest.mark.parametrize("option", ["--junit", "--summary", "--metrics", "--write-baseline"])
def test_no_file_is_written_over_what_was_read_or_into_the_evidence(option, run, tmp_path, capsys):
    """Failing means that a word in the wrong place costs the baseline, or the evidence itself."""
    kept = tmp_path / "kept.json"
    assert gate(capsys, run, "--write-baseline", kept, "--corridor-percent", "5")[0] == 0
    before, link = kept.read_bytes(), tmp_path / "link.json"
    link.symlink_to(kept)
    code, _, err = gate(capsys, run, "--baseline", kept, option, link)
    assert code == 2 and f"{option} would write over" in err and "--baseline" in err
    assert kept.read_bytes() == before
    plan = Path(run) / "plan.jsonl"
    before = plan.read_bytes()
    code, _, err = gate(capsys, run, option, plan)
    assert code == 2 and "into the evidence" in err and plan.read_bytes() == before
    code, _, err = gate(capsys, run, "--junit", tmp_path / "x", "--metrics", tmp_path / "x")
    assert code == 2 and "which is the file of --junit" in err
    for words in (["cube", run, "--output", f"{run}/experiment.json"], ["analyze", run, "--next", f"{run}/next.json"]):
        assert main(words) == 2
        assert "into the evidence" in capsys.readouterr().err


def test_a_place_that_takes_no_file_is_a_usage_error(run, tmp_path, capsys, monkeypatch):
    """Failing means that a wrong path is called a fault of xcfg."""
    (tmp_path / "file").write_text("")
    words = ["--write-baseline", tmp_path / "file" / "b.json", "--corridor-percent"]
    assert gate(capsys, run, *words, "5")[0] == 2
    code, _, err = gate(capsys, run, "--write-baseline", tmp_path / "b.json", "--corridor-percent", "nan")
    assert code == 2 and "give 0 to 100" in err
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    code, _, err = gate(capsys, run)
    assert code == 2 and "cannot be appended to" in err

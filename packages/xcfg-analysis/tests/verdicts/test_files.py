"""What build servers and trackers read: JUnit XML, the step summary, the flat metrics, each read by somebody else."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
import xcfg
from xcfg.errors import ExecutionError, MissingDependencyError, UsageError
from xcfg.schema.codec import evolve
from xcfg_analysis.cube.rows import AxisCell
from xcfg_analysis.cube.slices import slices_of
from xcfg_analysis.gate import metrics
from xcfg_analysis.gate.baseline import make_baseline
from xcfg_analysis.gate.judge import judge
from xcfg_analysis.gate.junit import junit_xml
from xcfg_analysis.gate.metrics import metrics_of, mlflow_names, send
from xcfg_analysis.gate.summary import markdown, text
from xcfg_analysis.rules.conclude import conclude

NASTY = "a<b>&\"'|\x00\x1b[31m\ud800 ]]>\n`x`"


def cell(path, value):
    return {path: AxisCell(path=path, requested=value, actual=value, status="applied", exercised="yes")}


@pytest.fixture
def report(row, failed, cube):
    """Two slices that share a case, a control, a failure, two errors and a case that is missing."""
    rows = [
        row("baseline", axes=cell("k", 0)),
        row("k=1", 0.9, {"k": 1}, axes=cell("k", 1)),
        evolve(failed("k=2", "UNSUPPORTED", "no such kernel"), axes=cell("k", 2), delta={"k": 2}),
        evolve(failed("k=3", "TIMEOUT", "after 5 s"), axes=cell("k", 3), delta={"k": 3}),
        row("repeat 1", role="repeat"),
    ]
    made = cube(rows, slices={"small": {"k": (0, 1)}, "odd": {"k": (1, 3)}}, missing=["k=4"])
    return judge(made, rules=conclude(made))


def test_junit_has_a_test_per_case_and_a_suite_per_slice(report):
    root = ET.fromstring(junit_xml(report))
    suites = {suite.get("name"): suite for suite in root}
    tests = {name: [case.get("name") for case in suite.iter("testcase")] for name, suite in suites.items()}
    assert tests == {
        "run": ["run", "k=4"],
        "small": ["baseline", "k=1"],
        "odd": ["k=1", "k=3"],
        "other cases": ["k=2"],
        "controls": ["repeat 1"],
    }
    told = {
        case.get("name"): [(item.tag, item.get("type")) for item in case if item.tag in ("failure", "error")]
        for case in root.iter("testcase")
    }
    assert told["k=1"] == [("failure", "mismatch")]
    assert told["k=2"] == [("error", "not_measured")] and told["k=3"] == [("error", "engine_failed")]
    assert told["k=4"] == [("error", "missing_case")]
    assert told["baseline"] == told["repeat 1"] == told["run"] == []
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("8", "2", "3")


def test_a_slice_of_one_side_looks_at_that_side(row, cube):
    """`k` is 1, and 2 on the rollout side: a term without a side has to hold on both."""
    axes = (
        cell("k", 1) | cell("k@rollout", 2) | cell("operators.o.training", 'mine {"a":1}') | cell("dtype", "bfloat16")
    )
    made = row("a", axes=axes)
    terms = {
        "rollout": {"k@rollout": (2,)},
        "training": {"k@training": (1,)},
        "either": {"k": (1, 2)},
        "one": {"k": (1,)},
        "other type": {"k@training": (True,)},
        "operator": {"operators.o.training": ("mine",)},
        "alias": {"dtype": ("bf16",)},
        "label": {"label": ("a*",), "role": ("case",)},
        "unknown": {"gone": (1,)},
    }
    knobs = xcfg.load_plugins().knobs()
    found = slices_of(cube([made], slices=terms), made, {"dtype": knobs["rollout.dtype"]})
    assert found == ("alias", "either", "label", "operator", "rollout", "training")


def test_another_reader_of_junit_finds_the_same(report, tmp_path):
    """junit2html, which renders such files in build pipelines."""
    from junit2htmlreport.parser import Junit

    path = tmp_path / "junit.xml"
    path.write_bytes(junit_xml(report))
    read = Junit(str(path))
    found = {
        suite.name: [(case.name, case.outcome()) for cls in suite.classes.values() for case in cls.cases]
        for suite in read.suites
    }
    assert found["small"] == [("baseline", "passed"), ("k=1", "failed")]
    assert found["odd"][1] == ("k=3", "failed"), "it calls an error a failure too"
    html = tmp_path / "junit.html"
    subprocess.run(
        [sys.executable, "-m", "junit2htmlreport", str(path), str(html)], check=True, capture_output=True, timeout=60
    )
    assert "no such kernel" in html.read_text() and "missing_case" in html.read_text()


@pytest.mark.parametrize("field", ["label", "reason"])
def test_what_an_engine_said_cannot_break_a_file(field, failed, cube):
    """Failing means that a build server shows no result at all because one error message held a control character."""
    made = cube([evolve(failed("a", "WORKER_FAILED", "x"), **{field: NASTY})])
    found = judge(made)
    root = ET.fromstring(junit_xml(found))
    assert "]]>" in ET.tostring(root, encoding="unicode").replace("&gt;", ">")
    shown = markdown(found)
    assert "<b>" not in shown
    table = [line for line in shown.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {10}


def test_every_kind_has_its_own_text_in_junit(row, cube):
    """Zero tokens, a missing case, NaN, no common case, another contract: told apart by type and by words."""
    good = cube([row("baseline")])
    held = make_baseline(good)
    edge = good.rows[0].edges["training_vs_rollout"]

    def with_edge(**changes):
        return evolve(good, rows=(evolve(good.rows[0], edges={edge.name: evolve(edge, **changes)}),))

    runs = {
        "zero_tokens": with_edge(active_tokens=0),
        "non_finite": with_edge(rms=float("nan")),
        "missing_case": evolve(good, missing=("a",)),
        "no_common_case": cube([row("other")]),
        "contract_changed": evolve(good, contract={"version": "v2", "digest": "e" * 64}),
    }
    texts = {}
    for kind, made in runs.items():
        errors = list(ET.fromstring(junit_xml(judge(made, held))).iter("error"))
        mine = [item for item in errors if item.get("type") == kind]
        assert mine, kind
        texts[kind] = mine[0].get("message")
    assert len(set(texts.values())) == len(texts)
    assert "No" in texts["zero_tokens"] or "no active token" in texts["zero_tokens"]


def test_the_summary_says_why_and_what_the_rules_say(report):
    shown = markdown(report)
    assert "gate closed: an engine failed (exit 4; 4 of 6 cases closed)" in shown
    assert "- k=2: `not_measured` UNSUPPORTED: no such kernel." in shown
    assert "`missing_case`" in shown and "L1: Production satisfies the contract" in shown
    assert text(report).splitlines()[-1].startswith("made: gate closed")


def test_a_mismatch_that_a_baseline_lets_through_is_shown_as_one(row, cube):
    made = cube([row("baseline", 0.9)])
    shown = markdown(judge(made, make_baseline(made), name="b.json"))
    assert "| MISMATCH |" in shown and "as baseline" in shown and "held against b.json" in shown


def test_metrics_are_flat_finite_and_lose_no_case(report, row, cube):
    found = metrics_of(report)
    assert found["xcfg/baseline/max_abs"] == 0.1 and found["xcfg/k=1/mismatch_ratio"] == 0.0
    assert found["xcfg/gate/exit_code"] == 4.0 and found["xcfg/gate/missing"] == 1.0
    assert found["xcfg/gate/mismatch"] == found["xcfg/gate/not_measured"] == 1.0
    twice = metrics_of(judge(cube([row("a", 0.1), row("a", 0.2, case_id="case-b")])))
    assert (twice["xcfg/a/max_abs"], twice["xcfg/a/max_abs.2"]) == (0.1, 0.2)
    odd = mlflow_names({"x/k=1@rollout": 1.0, "x/k_1_rollout": 2.0})
    assert odd == {"x/k_1_rollout": 1.0, "x/k_1_rollout.2": 2.0}


# --- trackers, through their own libraries ------------------------------------------------------------------

VALUES = {"xcfg/a b=1@rollout/max_abs": 0.25, "xcfg/gate/exit_code": 1.0}


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_back_what_was_sent(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for step in (3, 4):
        send({name: value * step for name, value in VALUES.items()}, f"tensorboard={tmp_path}", step=step)
    read = EventAccumulator(str(tmp_path)).Reload()
    assert set(read.Tags()["scalars"]) == set(VALUES)
    for name, value in VALUES.items():
        assert [(item.step, item.value) for item in read.Scalars(name)] == [(3, 3 * value), (4, 4 * value)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_back_what_was_sent(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    uri = tmp_path.joinpath("store").as_uri()
    send(VALUES, f"mlflow={uri}", step=7)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("xcfg")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics == mlflow_names(VALUES)
    (point,) = client.get_metric_history(run.info.run_id, "xcfg/a b_1_rollout/max_abs")
    assert (point.step, point.value) == (7, 0.25)


OFFLINE = """
import sys
from xcfg_analysis.gate.metrics import send
send({"xcfg/a=1/max_abs": 0.25}, "wandb=drift", step=2)
"""


def test_wandb_keeps_an_offline_run(tmp_path):
    """In a process of its own: its background service outlives a call."""
    import os

    environment = {
        **os.environ,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "HOME": str(tmp_path),
    }
    subprocess.run(
        [sys.executable, "-c", OFFLINE], env=environment, check=True, capture_output=True, timeout=240, cwd=tmp_path
    )
    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = log.read_bytes()
    assert b"xcfg/a=1/max_abs" in content and b"0.25" in content


@pytest.mark.parametrize("name", ["wandb", "tensorboard", "mlflow"])
def test_a_missing_library_names_its_extra(name, monkeypatch, tmp_path):
    """Failing means a traceback in place of the one command that helps."""
    real = builtins.__import__

    def absent(module, *rest, **more):
        if module.partition(".")[0] == name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(module, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingDependencyError) as error:
        send(VALUES, f"{name}={tmp_path}")
    assert f"xcfg-analysis[{name}]" in error.value.hint and error.value.exit_code == 2


def test_an_unknown_tracker_and_a_lacking_place_are_usage_errors():
    with pytest.raises(UsageError) as error:
        send(VALUES, "neptune=x")
    assert "tensorboard" in error.value.hint
    with pytest.raises(UsageError, match="folder"):
        send(VALUES, "tensorboard")


def test_what_a_tracker_says_is_no_fault_of_xcfg(monkeypatch):
    """Failing means that a tracker that is down asks people to report a bug."""

    def down(*_):
        raise RuntimeError("no key")

    monkeypatch.setitem(metrics.SENDERS, "wandb", down)
    with pytest.raises(ExecutionError, match="'wandb' did not take the metrics of 'wandb=p': RuntimeError: no key"):
        send({"xcfg/gate/exit_code": 0.0}, "wandb=p")

"""The summary of a run: its exit code is the gravest case, and a case that never ended is no pass."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from xcfg.flow.documents import FAILURE, Failure
from xcfg.flow.options import RunOptions
from xcfg.flow.prepare import PreparedCase
from xcfg.flow.summary import case_summary, gradients, run_summary
from xcfg.schema.codec import decode_json, evolve, plain
from xcfg.schema.names import Applied
from xcfg.schema.plan import ExperimentCase


@pytest.fixture
def planned(golden):
    return decode_json(golden("case").read_bytes(), ExperimentCase)


@pytest.fixture
def summary(attempt, planned):
    return lambda changes=None, **more: case_summary(
        planned, attempt(changes), **({"resumed": False, "seconds": {}} | more)
    )


def test_the_figures_are_those_that_were_sealed(summary, judged, planned):
    found = summary(seconds={"build": 1.0, "score": 2.0, "compare": 3.0}, resumed=True)
    comparison = judged().comparison
    assert (found.case_id, found.label, found.status, found.resumed) == (planned.case_id, "batch.size=1", "PASS", True)
    assert (found.threshold, found.reason) == (comparison.threshold, "")
    assert set(found.edges) == set(comparison.edges)
    for name, edge in plain(found.edges["training_vs_rollout"]).items():
        assert edge == getattr(comparison.edges["training_vs_rollout"], name)
    assert plain(found.seconds) == {"build": 1.0, "score": 2.0, "compare": 3.0}


def test_the_gradient_is_that_of_all_ranks(case, summary):
    """If this fails, one rank speaks for all, or a runtime's own word ends a run."""
    ranks = [
        {"backward": {"rows": 16, "broken_rows": 1, "max_abs": 0.5, "rel_l2": 0.01, "ran": {"backward_impl": "own"}}},
        {"backward": {"rows": 8, "broken_rows": 0, "max_abs": 0.25, "rel_l2": 0.02, "ran": {"backward_impl": "own"}}},
        {"scorer": "a rank without a sequence"},
    ]
    told = {"training": {"mechanism": ranks}, "rollout_decode": {"mechanism": [{"backward": "none"}]}, "recorded": {}}
    found = gradients(evolve(case.actual, provenance=told))
    assert plain(found) == {
        "training": {"rows": 24, "broken_rows": 1, "max_abs": 0.5, "rel_l2": 0.02, "ran": {"backward_impl": "own"}}
    }
    case.actual = evolve(case.actual, provenance=told)
    assert summary().gradients == found, "it is read back from what was sealed"


def test_missing_seconds_are_zero(summary):
    assert plain(summary().seconds) == {"build": 0.0, "score": 0.0, "compare": 0.0}


def test_a_refused_case_has_a_reason_and_no_figure(summary, setting):
    setting("training", "batch.size", status=Applied.FALLBACK, reason="another kernel")
    found = summary()
    assert (found.status, found.threshold, found.edges) == ("FALLBACK", None, {})
    assert found.reason == "batch.size on training: another kernel"
    assert found.assessment == "NO_REFERENCE"


def test_a_failure_says_why_also_when_it_is_resumed(attempt, planned):
    failure = Failure(schema_version=FAILURE, status="TIMEOUT", reason="too slow")
    sealed = attempt({"failure.json": failure, "comparison.json": None})
    sealed = type(sealed)(sealed.path, evolve(sealed.seal, status="TIMEOUT", assessment=""))
    found = case_summary(planned, sealed, resumed=True, seconds={})
    assert (found.status, found.reason, found.assessment, found.edges) == ("TIMEOUT", "too slow", "NO_REFERENCE", {})


@pytest.fixture
def run(contract, summary, planned):
    """run(["PASS", None], interrupted=False): the summary of cases with these statuses; None never ended."""
    whole = summary()

    def make(statuses, *, interrupted=False):
        cases = [evolve(planned, case_id=f"case-{index}", label=f"label {index}") for index in range(len(statuses))]
        ended = {
            case.case_id: evolve(whole, case_id=case.case_id, status=status)
            for case, status in zip(cases, statuses, strict=True)
            if status is not None
        }
        loaded = SimpleNamespace(experiment=SimpleNamespace(experiment_id="demo"), contract=contract)
        options = RunOptions(rollout="a", training="b")
        prepared = [PreparedCase(case=case) for case in cases]
        return run_summary(loaded, options, prepared, ended, interrupted=interrupted)

    return make


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["PASS"], 0),
        (["PASS", "PASS"], 0),
        (["PASS", "MISMATCH"], 1),
        (["MISMATCH", "UNSUPPORTED", "PASS"], 3),
        (["MISMATCH", "UNSUPPORTED", "WORKER_FAILED"], 4),
        (["TIMEOUT", "PASS"], 4),
        (["PASS", None], 3),
        ([None], 3),
        ([None, "LAUNCH_FAILED"], 4),
        ([], 3),
    ],
)
def test_the_exit_code_is_that_of_the_gravest_case(statuses, code, run):
    found = run(statuses)
    assert found.exit_code == code
    assert len(found.cases) == len(statuses)
    assert run(statuses, interrupted=True).exit_code == 130


def test_a_case_that_never_ended_is_cancelled_in_its_place(run, contract):
    found = run(["PASS", None, "MISMATCH"])
    assert [case.status for case in found.cases] == ["PASS", "CANCELLED", "MISMATCH"]
    assert found.cases[1].label == "label 1"
    assert (found.cases[1].attempt_id, found.cases[1].edges) == ("", {})
    assert "interrupted" in found.cases[1].reason
    assert found.runtimes == {"rollout": "a", "training": "b"}
    assert (found.experiment_id, found.contract.digest) == ("demo", contract.digest)

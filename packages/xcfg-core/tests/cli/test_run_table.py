"""What a person reads after a run: where logs lie, what a worker said last, whether the recording was met."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace as evolve
from xcfg.cli._run_table import nats, show_edges, show_run
from xcfg.schema.gradient import GradientSummary
from xcfg.schema.result import COMPARISON_SCHEMA, AssessmentResult, Comparison, EdgeResult
from xcfg.schema.summary import RUN_SUMMARY, CaseSummary, ContractSummary, EdgeSummary, RunSummary, Seconds

NOTHING = Seconds(build=0.0, score=0.0, compare=0.0)


def edge(mean, largest):
    return EdgeSummary(
        active_tokens=10, mismatches=0, max_abs=largest, mean_abs=mean, rms=mean, p99_abs=largest, approx_kl0=0.0
    )


def case(label, status, reason="", threshold=None, **edges):
    return CaseSummary(
        case_id=f"case-{label}",
        attempt_id="attempt-0001",
        label=label,
        status=status,
        assessment="NO_REFERENCE",
        reason=reason,
        resumed=False,
        threshold=threshold,
        edges=edges,
        seconds=NOTHING,
    )


def shown(capsys, *cases):
    summary = RunSummary(
        schema_version=RUN_SUMMARY,
        experiment_id="e",
        exit_code=0,
        runtimes={"rollout": "torch", "training": "torch"},
        contract=ContractSummary(source="s", version="v", digest="d" * 64),
        cases=cases,
    )
    show_run(summary, Path("out"))
    return capsys.readouterr().out


def test_logs_are_named_by_a_path_that_can_be_opened(capsys):
    out = shown(capsys, case("a", "WORKER_FAILED", "rank 0 ended"))
    assert "rank 0 ended; logs: out/e/cases/case-a/attempt-0001/" in out


def test_the_last_lines_of_a_worker_are_shown_once_for_all_cases_that_it_failed(capsys):
    reason = "rank 0 ended with exit code 1\nLast lines of worker-0.log:\n  RuntimeError: my trainer is broken"
    out = shown(capsys, case("a", "WORKER_FAILED", reason), case("b", "WORKER_FAILED", reason))
    assert out.count("my trainer is broken") == 1
    assert "a: the worker's last lines" in out


@pytest.mark.parametrize(
    ("verdict", "recorded", "says"),
    [
        ((0.01, 0.05), (5.58, 9.66), True),
        ((0.04, 0.3), (0.04, 0.3), False),
        ((0.0, 0.0), (1e-7, 1e-6), False),
        ((2.0, 5.0), (5.0, 9.0), False),
    ],
    ids=["another checkpoint", "an honest recording", "both exact", "the drift was reproduced"],
)
def test_a_recording_that_no_side_comes_near_is_said(capsys, verdict, recorded, says):
    edges = {"training_vs_rollout": edge(*verdict), "decode_vs_recorded": edge(*recorded)}
    out = shown(capsys, case("baseline", "PASS", threshold=0.05, **edges))
    assert ("from the values recorded in the rollout" in out) is says


def test_ratios_are_explained_once(capsys):
    """Failing means a ratio of 1810 against a limit, and no word on what it is a ratio of."""
    far = {"assessment": "EXCESS_TRAINING", "assessment_reason": "r_training = 1.81e+03 above the limit of 1.5"}
    worse = far | {"assessment_reason": "r_training = 2e+03 above the limit of 1.5"}
    rows = [evolve(case(name, "MISMATCH"), **given) for name, given in (("a", far), ("b", worse))]
    assert shown(capsys, *rows).count("docs/explanation/precision-budget.md") == 1
    few = evolve(case("a", "PASS"), assessment="UNDECIDED", assessment_reason="few")
    assert "precision-budget" not in shown(capsys, few)


def test_a_case_without_a_number_has_no_count_and_nothing_is_said_of_its_sides(capsys):
    """Failing means that scores which are no log probabilities read as none of 10 tokens over the threshold."""
    edges = {"training_vs_rollout": edge(None, None), "decode_vs_recorded": edge(5.58, 9.66)}
    out = shown(capsys, case("baseline", "INVALID_ARTIFACT", threshold=0.05, **edges))
    (line,) = [line for line in out.splitlines() if line.startswith("baseline")]
    assert line.split() == ["baseline", "INVALID_ARTIFACT", "NO_REFERENCE", "-", "max", "-", "mean", "-", "rms", "-"]
    assert "from each other" not in out


def test_an_edge_without_figures_has_no_count(capsys):
    """Failing means that `xcfg compare` counts 0 tokens over the threshold on an edge that nobody measured."""
    spoilt = EdgeResult(
        name="training_vs_rollout",
        first="training",
        second="recorded",
        status="INVALID_ARTIFACT",
        comparable=False,
        threshold=0.05,
        active_tokens=10,
    )
    lacking = AssessmentResult(assessment="NO_REFERENCE")
    comparison = Comparison(
        schema_version=COMPARISON_SCHEMA,
        status="INVALID_ARTIFACT",
        reason="",
        verdict_edge="training_vs_rollout",
        verdict_arm="recorded",
        threshold=0.05,
        edges={"training_vs_rollout": spoilt},
        assessment=lacking,
    )
    show_edges(comparison, ())
    assert "training_vs_rollout: 10 tokens, no figures, max -" in capsys.readouterr().out


def test_an_assessment_is_explained_under_the_name_of_its_case(capsys):
    """Failing means that the line below the table is read as one of its last row, or that a case loses its reason."""
    few, far = (
        {"assessment": "UNDECIDED", "assessment_reason": "few"},
        {"assessment": "BIASED", "assessment_reason": "few"},
    )
    rows = [evolve(case(name, "PASS"), **given) for name, given in (("a", few), ("b", far), ("c", few))]
    out = shown(capsys, *rows, case("d", "PASS"))
    assert "\n  a and 1 more: UNDECIDED: few\n  b: BIASED: few\n\n" in out


def test_a_number_never_fills_the_line():
    assert nats(-0.5) == "-0.500000"
    assert nats(0.25, "+") == "+0.250000"
    assert len(nats(-1e308)) < 12


def test_a_gradient_is_a_line_of_its_own_and_told_once(capsys):
    """If this fails, a drift that no log probability shows is measured and not told, or told for every case."""
    far = GradientSummary(rows=32, broken_rows=0, max_abs=1.25e-3, rel_l2=2e-3, ran={"backward_impl": "fused"})
    cases = [evolve(case(label, "PASS"), gradients={"training": far}) for label in ("a", "b", "c")]
    broken = evolve(case("d", "PASS"), gradients={"training": evolve(far, broken_rows=3)})
    nothing = evolve(far, broken_rows=32, max_abs=None, rel_l2=None)
    out = shown(capsys, *cases, broken, evolve(case("f", "PASS"), gradients={"training": nothing}), case("e", "PASS"))
    said = [line for line in out.splitlines() if "gradient of training" in line]
    figures = "gradient of training: max 0.00125, rel. L2 0.002 from float64's over 32 rows"
    unmeasured = figures.replace("0.00125", "-").replace("0.002", "-")
    assert said == [
        f"  a and 2 more: {figures} (backward_impl=fused)",
        f"  d: {figures}, 3 of them not finite (backward_impl=fused)",
        f"  f: {unmeasured}, 32 of them not finite (backward_impl=fused)",
    ]

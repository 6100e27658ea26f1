"""What a page names where no case explains an excess: options and settings that the two sides do not share."""

from __future__ import annotations

import pytest
import xcfg
from xcfg.schema.codec import evolve
from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.page.analysis import analyze_evidence, analyze_run
from xcfg_analysis.page.text import text
from xcfg_analysis.page.unvaried import options_of_one_side

BOTH = ("rollout", "training")


@pytest.mark.parametrize(
    ("rollout", "training", "sides", "said"),
    [
        ({"threads": 1}, {"threads": 1}, BOTH, ()),
        (
            {"threads": 1},
            {"threads": 2},
            BOTH,
            ("runtime_options.rollout.threads = 1", "runtime_options.training.threads = 2"),
        ),
        ({"threads": 1}, {"row_chunk": 2}, ("training",), ("runtime_options.training.row_chunk = 2",)),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ("rollout",), ('runtime_options.rollout.a = {"b":1}',)),
        ({"a": None}, {}, ("rollout",), ("runtime_options.rollout.a = null",)),
        ({"a": True}, {"a": 1}, ("rollout",), ("runtime_options.rollout.a = true",)),
        ({}, {}, BOTH, ()),
    ],
)
def test_options_by_hand(rollout, training, sides, said):
    """Failing means that an option is passed over, or that one which both sides share is suspected."""
    assert options_of_one_side({"runtime_options": {"rollout": rollout, "training": training}}, sides) == said


def test_a_run_without_options_names_none():
    assert options_of_one_side({}, BOTH) == ()


@pytest.fixture(scope="module")
def excess(runs, planted, tmp_path_factory):
    """A temperature in the training operator that no case takes away, and options on both sides."""
    folder = tmp_path_factory.mktemp("excess")
    changes = runs.TEMPERED | {
        "experiment_id": "excess",
        "runtime_options": {"rollout": {"row_chunk": 64}, "training": {"row_chunk": 128}},
    }
    xcfg.run(runs.write_experiment(folder, **changes), plugins=planted, output_root=folder / "runs")
    return analyze_run(folder / "runs" / "excess", plugins=planted)


def test_the_suspect_side_is_looked_at(excess):
    """Failing means that the reader is sent to the side that agrees with the reference."""
    assert excess.assessment == "EXCESS_TRAINING"
    (found,) = [item for item in excess.outside if "runtime_options" in item]
    assert found.startswith("runtime_options.training.row_chunk = 128: ")


def test_an_operator_that_no_case_changes_is_named_with_the_case_to_run(excess):
    """Failing means that the guilty setting stands in the file and the page is silent about it."""
    (found,) = excess.not_varied
    assert found.startswith("operators.selected_logprob.training = planted.tempered")
    assert "not varied" in text(excess)
    assert "vary operators.selected_logprob.training = native" in excess.next_step
    assert "--next excess-next.json" in excess.next_command


def test_where_a_cause_is_found_nothing_else_is_named(runs, planted, tmp_path):
    """Failing means that settings are suspected beside a cause that explains the gap."""
    changes = runs.TEMPERED | {
        "experiment_id": "cured",
        "interventions": [*runs.TEMPERED["interventions"], runs.CURED],
        "runtime_options": {"training": {"row_chunk": 128}},
    }
    xcfg.run(runs.write_experiment(tmp_path, **changes), plugins=planted, output_root=tmp_path / "runs")
    found = analyze_run(tmp_path / "runs" / "cured", plugins=planted)
    assert (found.outside, found.not_varied) == ((), ())


def test_a_baseline_that_is_no_verdict_says_why(grid, manager):
    """Failing means that figures are shown for sides that are not comparable, and the reason is nowhere on the page."""
    evidence = Evidence.open(grid, plugins=manager)
    rows = tuple(
        row
        if row.delta or row.role != "case"
        else evolve(row, status="NOT_COMPARABLE", reason="the sides pad unequally")
        for row in evidence.cube.rows
    )
    evidence.__dict__["cube"] = evolve(evidence.cube, rows=rows)
    assert "The sides pad unequally." in analyze_evidence(evidence).conclusion
    assert "pad unequally" not in analyze_run(grid, plugins=manager).conclusion

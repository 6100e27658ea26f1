"""What an edited source invalidates, on copies of the packages; and values that are no numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = Path(__file__).parent / "plugins" / "faulty_operators"
NAN = "operators.selected_logprob.training=faulty.nan"


def edit(file: Path) -> None:
    file.write_text(file.read_text(encoding="utf-8") + "\n# edited\n", encoding="utf-8")


@pytest.fixture(scope="module")
def bench(lab, frozen, tmp_path_factory):
    """Copies of an operator package, the renderers and core, first on the path; and a first run with them."""
    folder = tmp_path_factory.mktemp("sources")
    skip = shutil.ignore_patterns("__pycache__")
    places = (
        shutil.copytree(OPERATORS, folder / "operators", ignore=skip),
        shutil.copytree(ROOT / "packages/xcfg-report/src", folder / "report", ignore=skip),
        shutil.copytree(ROOT / "packages/xcfg-core/src", folder / "core", ignore=skip),
    )
    experiment = lab.experiment(
        folder / "sources.json",
        frozen,
        operators={"selected_logprob": {"rollout": "faulty.plain", "training": "faulty.plain"}},
        interventions=[{"path": "operators.selected_logprob.training", "values": ["faulty.nan"]}],
    )

    def again():
        done = lab.run(experiment, folder / "runs", plugins=places)
        return done, {path.name for path in (folder / "runs").glob("*/scores/*")}

    again.first, again.folder = again(), folder
    again.mapped = lab.checked(lab.program(_show(folder), plugins=places).end()).stdout.split()
    return again


def _show(folder: Path) -> Path:
    program = folder / "show.py"
    program.write_text(
        "import xcfg, xcfg_report, faulty_operators as o\nprint(xcfg.__file__, xcfg_report.__file__, o.__file__)\n"
    )
    return program


def test_the_copies_are_what_runs(bench):
    """Failing means that the edits below are made to files that nobody reads."""
    assert len(bench.mapped) == 3
    assert all(path.startswith(str(bench.folder)) for path in bench.mapped)


def test_nan_is_an_invalid_artifact(bench, lab):
    """Failing means that a comparison with NaN, which is false, counts as agreement."""
    done, _ = bench.first
    assert done.code == 3
    assert done.statuses == {"baseline": "PASS", NAN: "INVALID_ARTIFACT"}
    case = done.case(NAN)
    assert "training has 2 active scores that are not finite" in case["reason"]
    assert case["edges"]["training_vs_rollout"]["max_abs"] is None
    lab.verified(bench.folder / "runs")


def test_only_what_could_change_a_number_is_scored_again(bench):
    """Failing means that an edit of a page scores everything anew, or that an edited operator does not."""
    _, scores = bench.first
    core, report = bench.folder / "core" / "xcfg", bench.folder / "report" / "xcfg_report"
    edit(next(report.rglob("*.py")))
    edit(core / "cli" / "cmd_run.py")
    done, now = bench()
    assert done.case()["resumed"] is True and now == scores, "renderer and command line are no part of a score"
    edit(core / "comparison" / "figures.py")
    done, now = bench()
    assert done.case()["resumed"] is False and now == scores, "another comparator judges the stored scores again"
    assert done.case()["attempt_id"] == "attempt-0002"
    edit(bench.folder / "operators" / "faulty_operators.py")
    done, now = bench()
    assert done.case()["resumed"] is False
    assert done.statuses == {"baseline": "PASS", NAN: "INVALID_ARTIFACT"}
    recorded = 1
    assert len(now) == 2 * len(scores) - recorded, "every score that an engine made is made again"


def test_no_active_token_is_no_pass(lab, silent, tmp_path):
    """Failing means that a comparison of nothing counts as agreement."""
    experiment = lab.experiment(tmp_path / "nothing.json", silent)
    done = lab.run(experiment, tmp_path / "runs")
    case = done.case()
    assert (done.code, case["status"]) == (3, "ZERO_ACTIVE_TOKENS"), case["reason"]
    assert case["edges"]["training_vs_rollout"]["active_tokens"] == 0
    assert case["edges"]["training_vs_rollout"]["max_abs"] is None
    lab.verified(tmp_path / "runs")

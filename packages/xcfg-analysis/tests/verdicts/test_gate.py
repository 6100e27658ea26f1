"""The gate closes on everything that is missing, empty, not finite, of another problem, or outside its corridor."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from xcfg.errors import ConfigError, NotComparableError, UsageError
from xcfg.schema.codec import evolve
from xcfg.schema.names import Status
from xcfg_analysis.gate.baseline import make_baseline, read_baseline, write_baseline
from xcfg_analysis.gate.figures import STATISTICS, corridors, edge_of
from xcfg_analysis.gate.judge import judge
from xcfg_analysis.gate.kinds import KINDS

EDGE = "training_vs_rollout"


def kinds(report):
    """Every kind in a report: of the run, of its cases, and of what is missing."""
    found = [item.kind for item in report.findings]
    found += [item.kind for case in report.cases for item in case.findings]
    return sorted(found + ["missing_case"] * len(report.missing))


def edged(row, **changes):
    return evolve(row, edges={EDGE: evolve(row.edges[EDGE], **changes)})


def test_all_pass_opens_it(row, cube):
    report = judge(cube([row("baseline"), row("a", delta={"k": 1})]))
    assert (report.exit_code, kinds(report)) == (0, [])


def test_a_mismatch_is_1_and_names_tokens_and_assessment(row, cube):
    report = judge(cube([row("baseline"), row("a", 0.9)]))
    assert report.exit_code == 1
    (found,) = report.cases[1].findings
    assert found.kind == "mismatch" and "nats, at most by 0.9; EXPLAINED_BY_PRECISION" in found.text


@pytest.mark.parametrize("status", [item for item in Status if item not in (Status.PASS, Status.MISMATCH)])
def test_every_other_status_closes_it_with_the_code_of_the_contract(status, row, failed, cube):
    """Failing means that a case which measured nothing goes through."""
    report = judge(cube([row("baseline"), failed("a", status.value, "it broke")]))
    launch = status.value in ("LAUNCH_FAILED", "TIMEOUT", "WORKER_FAILED", "MISSING_RANK")
    assert report.exit_code == (4 if launch else 3)
    (found,) = report.cases[1].findings
    assert status.value in found.text and "it broke" in found.text
    expected = {"ZERO_ACTIVE_TOKENS": "zero_tokens", "EMPTY_JOIN": "no_common_key", "INVALID_ARTIFACT": "non_finite"}
    assert found.kind == expected.get(status.value, "engine_failed" if launch else "not_measured")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"active_tokens": 0}, "zero_tokens"),
        ({"mean_abs": math.nan}, "non_finite"),
        ({"max_abs": math.inf}, "non_finite"),
        ({"approx_kl0": None}, "non_finite"),
    ],
)
def test_a_pass_that_holds_no_number_is_no_pass(change, kind, row, cube):
    """Failing means that a status is believed over what lies beneath it."""
    report = judge(cube([row("baseline"), edged(row("a"), **change)]))
    assert (report.exit_code, kinds(report)) == (3, [kind])


def test_a_pass_without_its_edge_is_not_measured(row, cube):
    report = judge(cube([row("baseline"), row("a", edges={})]))
    assert (report.exit_code, kinds(report)) == (3, ["not_measured"])


def test_a_missing_case_and_an_empty_run_close_it(row, cube):
    report = judge(cube([row("baseline")], missing=["a"]))
    assert (report.exit_code, kinds(report), report.missing) == (3, ["missing_case"], ("a",))
    empty = judge(cube([]))
    assert (empty.exit_code, kinds(empty)) == (3, ["nothing_measured"])


def test_the_precedence_is_the_contract_s(row, failed, cube):
    bad, skipped, broken = row("a", 0.9), failed("b", "UNSUPPORTED"), failed("c", "TIMEOUT")
    assert judge(cube([row("baseline"), bad, skipped, broken])).exit_code == 4
    assert judge(cube([row("baseline"), bad, skipped])).exit_code == 3
    assert judge(cube([row("baseline"), bad])).exit_code == 1


# --- against a baseline -------------------------------------------------------------------------------------


@pytest.fixture
def ran(row, cube):
    """A run with a case that passes and one that does not."""
    return cube([row("baseline", 0.1), row("a", 0.9, {"k": 1})])


def test_the_run_that_wrote_it_goes_through_and_stays_a_mismatch(ran):
    report = judge(ran, make_baseline(ran), name="b.json")
    assert (report.exit_code, kinds(report)) == (0, [])
    assert [case.status for case in report.cases] == ["PASS", "MISMATCH"]
    assert {case.judged_by for case in report.cases} == {"baseline"}


@pytest.mark.parametrize(("factor", "kind"), [(1.5, "above_corridor"), (0.5, "below_corridor")])
@pytest.mark.parametrize("name", ["mean_abs", "rms", "bias"])
def test_the_corridor_has_two_sides(factor, kind, name, ran):
    """Failing means that drift which grew, or vanished, is not seen while the status stays."""
    moved = edged(ran.rows[1], **{name: getattr(ran.rows[1].edges[EDGE], name) * factor})
    report = judge(evolve(ran, rows=(ran.rows[0], moved)), make_baseline(ran))
    assert (report.exit_code, kinds(report)) == (1, [kind])
    assert name in report.cases[1].findings[0].text


def test_the_ends_of_the_corridor_belong_to_it(ran):
    baseline = make_baseline(ran, 10.0)
    held = baseline.cases["a"].figures["rms"]
    for value, code in ((held.high, 0), (held.low, 0), (np.nextafter(held.high, 9), 1), (np.nextafter(held.low, 0), 1)):
        moved = edged(ran.rows[1], rms=float(value))
        assert judge(evolve(ran, rows=(ran.rows[0], moved)), baseline).exit_code == code


def test_a_corridor_of_zero_width_holds_bits(row, cube):
    """A side that was equal bit for bit has to stay so."""
    still = cube([edged(row("baseline", 0.0), by_sequence=())])
    baseline = make_baseline(still, 10.0)
    assert judge(still, baseline).exit_code == 0
    moved = edged(still.rows[0], rms=1e-12, mean_abs=1e-12)
    assert kinds(judge(evolve(still, rows=(moved,)), baseline)) == ["above_corridor", "above_corridor"]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"contract": {"source": "made", "version": "v2", "digest": "e" * 64}}, "contract_changed"),
        ({"rollout": "q" * 64}, "rollout_changed"),
        ({"runtimes": {"rollout": "vllm", "training": "torch"}}, "environment_changed"),
    ],
)
def test_another_problem_is_not_compared(change, kind, ran):
    """Failing means that figures of two problems are held against each other; nothing of the baseline excuses then."""
    report = judge(evolve(ran, **change), make_baseline(ran))
    assert report.exit_code == 3
    assert kinds(report) == sorted([kind, "mismatch"])
    assert {case.judged_by for case in report.cases} == {"contract"}


def test_another_device_is_another_environment(ran):
    moved = tuple(evolve(item, devices={"rollout": "cuda: H200", "training": "cpu: x"}) for item in ran.rows)
    assert "environment_changed" in kinds(judge(evolve(ran, rows=moved), make_baseline(ran)))


def test_no_common_case_closes_it(ran, row, cube):
    other = cube([row("elsewhere")])
    report = judge(other, make_baseline(ran))
    assert report.exit_code == 3
    assert kinds(report) == ["missing_case", "missing_case", "no_common_case"]


def test_a_case_of_the_baseline_that_is_gone_closes_it(ran):
    report = judge(evolve(ran, rows=ran.rows[:1]), make_baseline(ran))
    assert (report.exit_code, report.missing) == (3, ("a",))


def test_a_case_that_the_baseline_does_not_know_is_judged_by_the_contract(ran, row):
    for top, code in ((0.2, 0), (0.8, 1)):
        report = judge(evolve(ran, rows=(*ran.rows, row("new", top))), make_baseline(ran))
        assert (report.exit_code, report.cases[2].judged_by) == (code, "contract")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"case_id": "case-other"}, "case_changed"),
        ({"status": "PASS"}, "status_changed"),
        ({"assessment": None}, "assessment_changed"),
    ],
)
def test_a_case_that_changed_under_its_label_closes_it(change, kind, ran):
    rows = ran.rows[0], evolve(ran.rows[1], **change)
    assert kind in kinds(judge(evolve(ran, rows=rows), make_baseline(ran)))


def test_a_case_that_changed_names_the_settings(ran):
    """Failing means that a closed gate sends a person to compare two files by eye."""
    now = evolve(
        ran, experiment={**ran.experiment, "baseline": {"rollout": {"dtype": "float32"}, "batch": {"size": 2}}}
    )
    before = evolve(ran, experiment={**ran.experiment, "baseline": {"rollout": {"dtype": "bfloat16"}}})
    rows = now.rows[0], evolve(now.rows[1], case_id="case-other")
    report = judge(evolve(now, rows=rows), make_baseline(before))
    (found,) = [item for case in report.cases for item in case.findings]
    assert "batch.size 2 instead of unset, rollout.dtype 'float32' instead of 'bfloat16'" in found.text
    without = judge(evolve(now, rows=rows), evolve(make_baseline(before), settings={}))
    (bare,) = [item for case in without.cases for item in case.findings]
    assert bare.kind == "case_changed" and "rollout.dtype" not in bare.text


def test_a_case_that_changed_names_what_enters_its_id_and_no_place(ran):
    """Failing means that a moved folder is named as the reason, or that the reason is not named at all."""
    kept = {
        "identity": {"rollout": {"path": "/a", "sha256": "0" * 64}},
        "scenario": {"note": "x" * 500},
        "fixed": {"batch.size": 2},
        "strict_fallback": True,
    }
    others = {"identity": {"rollout": {"path": "/b", "sha256": "0" * 64}}, "scenario": {}, "fixed": {"batch.size": 4}}
    before = evolve(ran, experiment={**ran.experiment, **kept})
    now = evolve(ran, experiment={**ran.experiment, **kept, **others, "strict_fallback": False})
    rows = now.rows[0], evolve(now.rows[1], case_id="case-other")
    (found,) = [item for case in judge(evolve(now, rows=rows), make_baseline(before)).cases for item in case.findings]
    assert "batch.size 4 instead of 2, scenario.note unset instead of 'xxx" in found.text
    assert "strict_fallback False instead of True" in found.text
    assert "path" not in found.text and "x" * 100 not in found.text


def test_another_number_of_tokens_closes_it(ran):
    rows = ran.rows[0], edged(ran.rows[1], active_tokens=81)
    report = judge(evolve(ran, rows=rows), make_baseline(ran))
    assert (report.exit_code, kinds(report)) == (3, ["tokens_changed"])


def test_the_corridor_is_a_bootstrap_over_sequences(row):
    """An independent oracle: scipy's percentile bootstrap of the same ratio over the same sequences."""
    from scipy.stats import bootstrap

    made = row("a", 0.9)
    groups = edge_of(made).by_sequence
    size = np.array([g.active_tokens for g in groups], dtype=float)
    total = np.array([g.mean_abs * g.active_tokens for g in groups])
    oracle = bootstrap(
        (total, size),
        lambda t, n, axis: t.sum(axis=axis) / n.sum(axis=axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=20000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    held = corridors(made, None)["mean_abs"]
    width = oracle.high - oracle.low
    assert abs(held.low - oracle.low) < 0.1 * width and abs(held.high - oracle.high) < 0.1 * width
    assert set(corridors(made, None)) == set(STATISTICS)


def test_too_few_sequences_need_a_stated_corridor(row, cube):
    few = edged(row("baseline"), by_sequence=row("baseline").edges[EDGE].by_sequence[:7])
    with pytest.raises(UsageError, match="7 sequences, too few"):
        make_baseline(cube([few]))
    held = make_baseline(cube([few]), 10.0)
    assert held.corridor.startswith("stated: 10 %")
    figure = held.cases["baseline"].figures["rms"]
    assert (figure.low, figure.high) == pytest.approx((0.9 * figure.value, 1.1 * figure.value))


@pytest.mark.parametrize("hole", ["missing", "unsupported", "nan", "twice", "empty"])
def test_no_baseline_is_written_from_a_hole(hole, row, failed, cube):
    """Failing means that a gate is born open for a case that was never measured."""
    good = row("baseline")
    runs = {
        "missing": cube([good], missing=["a"]),
        "unsupported": cube([good, failed("a", "UNSUPPORTED")]),
        "nan": cube([good, edged(row("a"), rms=math.nan)]),
        "twice": cube([good, row("a"), row("a", case_id="case-b")]),
        "empty": cube([]),
    }
    with pytest.raises(NotComparableError, match="no baseline was written"):
        make_baseline(runs[hole])


def test_a_baseline_file_survives_and_strangers_are_refused(ran, tmp_path):
    path = tmp_path / "deep" / "b.json"
    write_baseline(path, make_baseline(ran))
    assert read_baseline(path) == make_baseline(ran)
    document = json.loads(path.read_text())
    broken = {
        "version": document | {"schema_version": "other"},
        "no case": document | {"cases": {}},
        "unknown": document | {"tolerance": 1},
        "no figure": document | {"cases": {"a": document["cases"]["a"] | {"figures": {}}}},
        "upside down": document
        | {"cases": {"a": document["cases"]["a"] | {"figures": {"rms": {"value": 1.0, "low": 2.0, "high": 1.0}}}}},
    }
    for content in broken.values():
        path.write_text(json.dumps(content))
        with pytest.raises(ConfigError):
            read_baseline(path)
    for other, told in (({"schema_version": "xcfg.run_summary.v1", "cases": []}, "xcfg.run_summary.v1"), ([], "None")):
        path.write_text(json.dumps(other))
        with pytest.raises(ConfigError, match=f"is no baseline of a gate, but .?{told}"):
            read_baseline(path)
    path.write_text('{"cases": {"a": NaN}}')
    with pytest.raises(ConfigError):
        read_baseline(path)


def test_a_report_is_plain_json(ran, again):
    report = judge(ran, make_baseline(ran))
    assert again(report) == report


def test_every_kind_says_what_to_do():
    assert all(item.cure.endswith(".") and item.code in (1, 3, 4) for item in KINDS.values())


@pytest.mark.parametrize("change", ["without", "another"])
def test_a_baseline_that_holds_other_figures_is_refused(change, row, cube, tmp_path):
    """Failing means that a case is let through by less than what a baseline has to hold."""
    file = tmp_path / "b.json"
    write_baseline(file, make_baseline(cube([row("baseline"), row("a", 0.9)])))
    document = json.loads(file.read_text())
    figures = document["cases"]["a"]["figures"]
    figures |= {"max_abs": figures["rms"]} if change == "another" else {}
    if change == "without":
        del figures["rms"]
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"'a' has to hold mean_abs, rms, bias, mismatch_ratio and nothing else"):
        read_baseline(file)

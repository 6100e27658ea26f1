"""What a page says of the sets that are enough, against `xcfg minimize`; one ladder under both; the plan that ran."""

from __future__ import annotations

import itertools
import json
import shutil

import pytest
import xcfg
from xcfg.flow.inputs import Selection
from xcfg.schema.codec import evolve
from xcfg.schema.result import Interval
from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.minimize.from_grid import from_grid
from xcfg_analysis.minimize.journey import minimize_run
from xcfg_analysis.minimize.level import stop_at
from xcfg_analysis.minimize.objective import Outcome, parse
from xcfg_analysis.minimize.of_run import searched
from xcfg_analysis.minimize.report import Searched, document, minimization
from xcfg_analysis.minimize.show import text as shown
from xcfg_analysis.page.analysis import analyze_run, look_at
from xcfg_analysis.page.next_file import write_next
from xcfg_analysis.page.next_step import _after_cause
from xcfg_analysis.page.tables import interaction_lines
from xcfg_analysis.page.text import text
from xcfg_analysis.rules.ladder import ladder
from xcfg_analysis.rules.points import find_points

SLICED = {
    "experiment_id": "sliced",
    "interventions": [
        {"path": "training.attention_backend", "values": ["eager"]},
        {"path": "batch.size", "values": [2]},
    ],
    "controls": {"reference": False},
    "slices": {"kernels": {"label": ["training.attention_backend=*"]}, "layout": {"label": ["batch.size=*"]}},
}


def smallest(page):
    """Return the section on one line."""
    return " ".join(page.partition("SMALLEST CHANGE\n")[2].partition("\n\n")[0].split())


def test_the_page_names_the_set_that_minimize_names(tempered, planted):
    """Failing means that a page and `xcfg minimize` of one run give two answers to one question."""
    _, after, folder = tempered
    asked = minimize_run(folder, "explained", plugins=planted)
    assert after.minimization == asked.minimization
    assert (asked.ladder_level, asked.conclusion) == (after.minimization.level, after.minimization.says)
    assert asked.minimal_sets == (("operators.selected_logprob.training=native",),)
    assert asked.ladder_level == "L3" and "L3. " in shown(asked)
    said = smallest(text(after))
    assert "enough For 'explained', operators.selected_logprob.training=native is enough (others may exist)." in said
    assert "open other sets may be enough as well: " in said and "of 8 were not run" in said
    assert "may differ batch.size, " in said and "It is no proof of a root cause" in said
    assert "operators.selected_logprob.training" not in said.partition("may differ")[2].partition(" open ")[0]


def test_a_grid_without_a_set_that_is_enough_says_so(tempered):
    """Failing means that a page promises a fix that no case showed."""
    before, _, _ = tempered
    assert before.minimization.sets == () and before.minimization.level == "L2"
    said = smallest(text(before))
    assert "No set is known to be enough for 'explained'" in said
    assert "claim" not in said and "may differ" not in said
    assert said.endswith(
        "do look outside the declared knobs first, where the excess comes from; none that was tried narrows it"
    )


def test_production_that_lacks_nothing_is_asked_nothing(grid, manager):
    found = analyze_run(grid, plugins=manager)
    assert found.minimization is None and smallest(text(found)).startswith("level L1: ")
    assert minimize_run(grid, "verdict", plugins=manager).ladder_level == found.ladder_level == "L1"


def test_what_may_be_luck_is_said(tempered):
    """By hand: the same document whose effect is not shown, and whose case something else changed with."""
    _, after, _ = tempered
    effects = tuple(evolve(item, direction="") for item in after.effects)
    assert "may be enough by luck" in smallest(text(evolve(after, effects=effects)))
    assert "may be enough by luck" not in smallest(text(after))
    ran = after.minimization
    trials = tuple(evolve(item, coupled=("rollout.block_size",)) for item in ran.trials)
    coupled = evolve(after, minimization=evolve(ran, trials=trials))
    assert "With it changed rollout.block_size." in smallest(text(coupled))


def test_other_surroundings_are_enough_for_nothing(cubes):
    """Failing means that another version of an engine is called a sufficient change of a setting."""
    good, bad = [0.01] * 12, [1.0 + 0.01 * at for at in range(12)]
    rows = [cubes.row(bad), cubes.row(good, {"a": 1}, outside=("environment.rollout.torch",)), cubes.row(bad, {"b": 1})]
    executed = from_grid(cubes.cube(*rows), parse("reduction>=90%"))
    assert executed.found.sets == ()
    (judged,) = [executed.judged[frozenset({at})] for at, atom in enumerate(executed.atoms) if atom.label == "a=1"]
    assert judged.outcome is Outcome.UNRESOLVED and "environment.rollout.torch" in judged.reason


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("states", list(itertools.product(("passes", "fails", "absent"), repeat=3)))
def test_the_ladder_and_minimize_agree_by_the_verdict(cubes, states, aligned):
    """Every grid of two changes, some cells missing; the two ways to a level share no code but the last step."""
    deltas = [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}]
    rows = [cubes.row([1.0] * 12, top=0.5)]
    for delta, state in zip(deltas, states, strict=True):
        if state != "absent":
            made = cubes.row([1.0] * 12, delta, top=0.05 if state == "passes" else 0.5)
            rows.append(evolve(made, label=", ".join(f"align {key} to training" for key in delta)))
    cube = cubes.cube(*rows)
    if aligned:
        cube = evolve(cube, experiment={"align": [{"path": key, "to": "training"} for key in ("a", "b")]})
    executed = from_grid(cube, parse("verdict"))
    found = document(
        Searched(
            objective=parse("verdict"),
            atoms=executed.atoms,
            found=executed.found,
            judged=executed.judged,
            rows={subset: items[0] for subset, items in executed.rows.items()},
            fixed={},
            budget=4,
            repeats=0,
            source="made",
            whole=executed.whole,
        )
    )
    assert found.ladder_level == ladder(find_points(cube)).level
    if states[:2] == ("fails", "fails"):
        of_both = {"passes": "L5" if aligned else "L4", "fails": "L5" if aligned else "L2", "absent": "L2"}
        assert found.ladder_level == of_both[states[2]]


@pytest.mark.parametrize(
    ("production", "size", "facts", "level"),
    [
        (Outcome.UNRESOLVED, 1, {}, ""),
        (Outcome.MEETS, 0, {}, "L1"),
        (Outcome.FAILS, None, {}, "L2"),
        (Outcome.FAILS, None, {"whole_fails": True}, "L5"),
        (Outcome.FAILS, 1, {"untried": True, "only_whole": True}, "L3"),
        (Outcome.FAILS, 2, {"untried": True, "only_whole": True}, "L2"),
        (Outcome.FAILS, 2, {}, "L4"),
        (Outcome.FAILS, 2, {"only_whole": True}, "L5"),
    ],
)
def test_the_level_from_facts(production, size, facts, level):
    plain = {"untried": False, "only_whole": False, "whole_fails": False}
    assert stop_at(production, size, **(plain | facts)) == level


def test_where_the_grid_leaves_it_open_the_next_step_goes_beyond_it(grid, manager, tmp_path):
    """Failing means that a search is advised that can add nothing, or that what could be run is not."""
    evidence = Evidence.open(grid, plugins=manager)
    baseline = evidence.cube.baseline
    ran = minimization(searched(evidence, "reduction>=90%"))
    none = evolve(ran, sets=(), complete=False)
    causes = tuple(
        evolve(item, direction="narrows") for item in look_at(evidence).analysis.causes if " + " not in item.knob
    )
    assert len(causes) >= 2
    first = [evolve(causes[0], knob="batch.size"), evolve(causes[1], knob="training.attention_backend")]
    step = _after_cause(evidence, baseline, first, none, grid.parent.parent)
    assert step.changes == {"pairwise_paths": [["batch.size", "training.attention_backend"]]}
    assert "run batch.size + training.attention_backend together" in step.step
    write_next(tmp_path / "next.json", evidence, step.changes)
    planned = {case.label for case in xcfg.plan(tmp_path / "next.json").cases}
    before = {row.label for row in evidence.cube.rows if row.role == "case"}
    assert before < planned
    assert any({"batch.size=2", "training.attention_backend=eager"} == set(label.split(", ")) for label in planned)
    listed = [evolve(causes[0], knob="training.compute_dtype"), evolve(causes[1], knob="training.attention_backend")]
    known = _after_cause(evidence, baseline, listed, none, grid.parent.parent)
    assert known.changes is None, "these two were run together already"
    align = [{"path": "training.compute_dtype", "to": "rollout"}]
    evidence.__dict__["cube"] = evolve(evidence.cube, experiment=dict(evidence.cube.experiment) | {"align": align})
    search = _after_cause(evidence, baseline, first, none, grid.parent.parent)
    assert search.command == (
        "xcfg analyze runs/grid --next grid-next.json; xcfg minimize grid-next.json --objective 'reduction>=90%'"
    )
    assert search.changes == {}
    over = _after_cause(evidence, baseline, first, evolve(none, complete=True), grid.parent.parent)
    assert "minimize" not in over.command, "every set was run, so a search adds nothing"


def test_an_interaction_says_what_its_case_cannot_tell_apart(runs, manager, tmp_path):
    """Failing means that a row of a covering array reads as if all its settings were known to be needed."""
    axes = {"training.compute_dtype": "float32", "training.attention_backend": "eager", "rollout.dtype": "float32"}
    file = runs.write_experiment(
        tmp_path,
        experiment_id="covered",
        strategy="pairwise",
        interventions=[{"path": path, "values": [value]} for path, value in axes.items()],
        controls={"reference": False},
    )
    xcfg.run(file, plugins=manager, output_root=tmp_path / "runs")
    found = analyze_run(tmp_path / "runs" / "covered", plugins=manager)
    (one,) = found.interactions
    change = one.change or Interval(value=1e-3, low=1e-4, high=2e-3)
    stands = evolve(one, outcome="INTERACTION", change=change)
    said = " ".join(text(evolve(found, interactions=(stands,))).split())
    assert "which of these pairs does it, or whether all do" in said
    for pair in itertools.combinations(sorted(axes), 2):
        assert " + ".join(pair) in said.partition("whether all do: ")[2]
    assert "which of these" not in interaction_lines([evolve(stands, among=())])


def test_a_run_keeps_the_analysis_of_its_own_plan(runs, manager, tmp_path):
    """Two slices are revisions with one digest; the older runs again. Failing means an analysis of the other slice."""
    file = runs.write_experiment(tmp_path, **SLICED)
    root = tmp_path / "runs"

    def kept(name):
        shutil.rmtree(root / "sliced" / "analysis", ignore_errors=True)
        summary = xcfg.run(file, plugins=manager, output_root=root, selection=Selection(slice=name))
        (document,) = (root / "sliced" / "analysis").iterdir()
        return {case.case_id for case in summary.cases}, json.loads(document.read_text())

    for name in ("kernels", "layout", "kernels"):
        ran, document = kept(name)
        assert len(ran) == 2
        assert {document["evidence"]["baseline"], *(item["case_id"] for item in document["effects"])} == ran, name

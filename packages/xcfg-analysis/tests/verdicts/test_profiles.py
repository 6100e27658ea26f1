"""`--profile A0` to `A5`: which settings are aligned, which come back from production, and in which cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import xcfg
from xcfg.cli.main import main
from xcfg.schema.codec import evolve, plain
from xcfg.schema.knobs import AlignSpec, Choice, KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target
from xcfg.schema.operators import OperatorChoice
from xcfg.schema.plan import ExperimentCase
from xcfg_analysis.rules.classes import OF_SOURCE
from xcfg_analysis.rules.differences import find
from xcfg_analysis.rules.expand import rows, slices
from xcfg_analysis.rules.presets import PROFILES

TINY = Path(__file__).resolve().parents[4] / "examples" / "quickstart"
MIXED = {
    "batch": {"size": 4, "size@rollout": 2},
    "rollout": {"dtype": "bfloat16", "attention_backend": "eager", "tensor_parallel_size": 2},
    "training": {"compute_dtype": "float32", "attention_backend": "sdpa", "sharding": "fsdp"},
}


@pytest.fixture
def file(tmp_path):
    """file(baseline, **fields) -> an experiment file beside the tiny example's rollout."""

    def write(baseline, **fields):
        document = json.loads((TINY / "tiny.json").read_text())
        document |= {"experiment_id": "mixed", "baseline": baseline, "interventions": []} | fields
        document["identity"]["rollout"]["path"] = str(TINY / "tiny-rollout")
        path = tmp_path / "mixed.json"
        path.write_text(json.dumps(document))
        return path

    return write


def planned(capsys, path, name, *more):
    code = main(["plan", str(path), "--profile", name, "--json", *more])
    shown = json.loads(capsys.readouterr().out)
    return code, shown, [frozenset(case["delta"]) for case in shown.get("cases", ())]


ARITHMETIC = frozenset({"rollout.attention_backend"})
REDUCTION = frozenset({"rollout.tensor_parallel_size", "training.sharding"})
REPRESENTATION = frozenset({"rollout.dtype"})
EVERYTHING = ARITHMETIC | REDUCTION | REPRESENTATION | {"batch.size@rollout"}
NONE = frozenset()


@pytest.mark.parametrize(
    ("name", "deltas"),
    [
        ("A0", [NONE]),
        ("A1", [NONE, ARITHMETIC]),
        ("A2", [NONE, {"rollout.tensor_parallel_size"}, {"training.sharding"}, REDUCTION]),
        ("A3", [NONE, REPRESENTATION]),
        ("A5", [NONE, EVERYTHING]),
    ],
)
def test_each_profile_varies_its_class_and_nothing_else(name, deltas, file, capsys):
    """Failing means that a claim about one class of differences rests on cases in which another differs as well."""
    code, shown, found = planned(capsys, file(MIXED), name)
    assert code == 0 and shown["experiment_id"] == "mixed-profiles"
    assert found[0] == NONE
    assert sorted(map(sorted, found)) == sorted(map(sorted, deltas))


def test_pairs_are_all_pairs_of_classes(file, capsys):
    _, _, found = planned(capsys, file(MIXED), "A4")
    assert {ARITHMETIC | REDUCTION, ARITHMETIC | REPRESENTATION, REDUCTION | REPRESENTATION} <= set(found)
    assert EVERYTHING in found and REDUCTION in found, "the cases that decide whether pairs are due are among them"
    _, _, without = planned(capsys, file(MIXED), "A0-A5")
    assert len(set(found) - set(without)) == 3


def test_a0_aligns_to_the_training_side_and_production_comes_back(file):
    """And what has no counterpart takes its plain value: one rank, unsharded."""
    loaded = xcfg.load(file(MIXED))
    baseline = loaded.plan.cases[0]
    sides = find(baseline, xcfg.load_plugins().knobs(), {})
    expected = {
        "rollout.dtype": "float32",
        "rollout.attention_backend": "sdpa",
        "rollout.tensor_parallel_size": 1,
        "training.sharding": "unsharded",
        "training.compute_dtype": "float32",
        "batch.size": 4,
    }
    assert {path: sides.aligned[path] for path in expected} == expected
    produced = {item.key: item.production for item in sides.differences}
    assert produced == {
        "rollout.dtype": "bfloat16",
        "rollout.attention_backend": "eager",
        "rollout.tensor_parallel_size": 2,
        "training.sharding": "fsdp",
        "batch.size@rollout": 2,
    }
    assert {item.key: item.of for item in sides.differences}["batch.size@rollout"] == "layout"


def test_the_points_are_slices_of_the_experiment(file):
    """So that --slice, and a suite per slice, work; A1 pins every setting of the other classes."""
    sides = find(xcfg.load(file(MIXED)).plan.cases[0], xcfg.load_plugins().knobs(), {})
    found, points = slices(sides.differences), rows(sides.differences)
    assert set(found) == {"A0", *points}
    assert set(found["A1"]) == EVERYTHING - ARITHMETIC and found["A1"]["rollout.dtype"] == ("float32",)
    assert set(found["A4.reduction+representation"]) == ARITHMETIC | {"batch.size@rollout"}
    assert found["A5"]["rollout.dtype"] == ("bfloat16",)


def test_a_class_in_which_the_sides_agree_has_no_profile(file, capsys):
    code, shown, _ = planned(
        capsys, file({**MIXED, "rollout": {"dtype": "float32", "attention_backend": "eager"}}), "A3"
    )
    assert (code, shown["kind"]) == (3, "nothing_selected")
    assert "no representation setting differs" in shown["message"]
    same = {"rollout": {"dtype": "float32", "attention_backend": "sdpa"}, "training": {"compute_dtype": "float32"}}
    assert planned(capsys, file(same), "A0")[2] == [NONE]
    assert planned(capsys, file(same), "A5")[0] == planned(capsys, file(same), "A4")[0] == 3


def test_what_the_file_holds_fixed_stays(file):
    path = file(MIXED, fixed={"rollout.dtype": "bfloat16"})
    sides = find(xcfg.load(path).plan.cases[0], xcfg.load_plugins().knobs(), {"rollout.dtype": "bfloat16"})
    assert "rollout.dtype" not in {item.key for item in sides.differences}
    assert {item.key for item in sides.differences} >= {"training.compute_dtype"}, "then the other side moves"
    both = {"rollout.dtype": "bfloat16", "training.compute_dtype": "float32"}
    kept = find(xcfg.load(path).plan.cases[0], xcfg.load_plugins().knobs(), both).kept
    assert kept["rollout.dtype"] == "the file holds it fixed"


def test_one_sided_operators_are_arithmetic(file):
    case = xcfg.load(file(MIXED)).plan.cases[0]
    mapped = {"rollout": OperatorChoice(backend="mine"), "training": OperatorChoice(backend="native")}
    sides = find(evolve(case, operators={"selected_logprob": mapped}), xcfg.load_plugins().knobs(), {})
    (found,) = [item for item in sides.differences if item.path.startswith("operators.")]
    assert (found.key, found.of, found.production) == ("operators.selected_logprob.rollout", "arithmetic", "mine")
    assert sides.operators["selected_logprob"] == {"rollout": "native", "training": "native"}


def knob(name, target, source, **fields):
    return KnobDefinition(
        name=name,
        summary="x",
        source_class=source,
        lifecycle=Lifecycle.REQUEST,
        targets=target,
        domain=Choice(values=("a", "b")),
        **fields,
    )


def test_values_meet_in_the_spelling_of_their_group():
    """`a` of the rollout is what training calls `b`; a value that training alone has moves training."""
    ours, theirs = {'"a"': "same", '"b"': "other"}, {'"b"': "same", '"a"': "third"}
    one = knob("rollout.x", Target.ROLLOUT, SourceClass.ARITHMETIC, align=AlignSpec(group="x", canonical=ours))
    two = knob("training.x", Target.TRAINING, SourceClass.ARITHMETIC, align=AlignSpec(group="x", canonical=theirs))
    knobs = {item.name: item for item in (one, two)}

    def differences(r, t):
        values = {"rollout.x": r, "training.x": t}
        return find(ExperimentCase(case_id="c", label="baseline", knobs=values, delta={}, operators={}), knobs, {})

    assert differences("a", "b").differences == []
    (found,) = differences("b", "b").differences
    assert (found.key, found.aligned, found.production) == ("rollout.x", "a", "b")
    (found,) = differences("a", "a").differences
    assert (found.key, found.aligned, found.production) == ("training.x", "b", "a")
    assert set(differences("b", "a").kept) == {"rollout.x", "training.x"}


def test_an_engine_s_own_choice_is_left_to_it(file, capsys):
    """Failing means that A0 asks vLLM for the trainer's attention, which it has not, and nothing is measured."""
    path = file({**MIXED, "rollout": {"dtype": "bfloat16", "attention_backend": "model_default"}})
    sides = find(xcfg.load(path).plan.cases[0], xcfg.load_plugins().knobs(), {})
    assert "names nothing" in sides.kept["rollout.attention_backend"]
    assert sides.aligned["rollout.attention_backend"] == "model_default"
    (issue,) = planned(capsys, path, "A2")[1]["issues"][:1]
    assert issue["code"] == "NOT_ALIGNED" and issue["path"] == "rollout.attention_backend"
    code, shown, _ = planned(capsys, path, "A1")
    assert code == 3 and "rollout.attention_backend" in shown["hint"]


def test_every_source_class_belongs_to_a_class():
    assert set(OF_SOURCE) == {item.value for item in SourceClass}
    assert [item.name for item in PROFILES] == ["A0", "A1", "A2", "A3", "A4", "A5", "A0-A5"]


@pytest.mark.parametrize("more", [("--slice", "A1"), ("--filter", "batch.size==99")])
def test_a_profile_with_another_selection_is_no_silent_choice(more, file, capsys):
    code, shown, _ = planned(capsys, file(MIXED), "A2", *more)
    assert code in (2, 3) and shown["kind"] in ("usage", "nothing_selected")


def test_a_filter_narrows_a_profile(file, capsys):
    _, _, found = planned(capsys, file(MIXED), "A2", "--filter", "training.sharding==fsdp")
    assert found == [NONE, {"training.sharding"}, REDUCTION]


def test_a_v1_file_can_be_profiled_too(capsys):
    scenarios = TINY.parent / "scenarios"
    code, shown, found = planned(capsys, scenarios / "s1.json", "A0")
    assert code == 0 and found == [NONE], plain(shown)

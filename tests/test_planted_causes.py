"""Causes planted in real engines: each page says what is true of its cause, and the committed table is what it said."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from planted_engines import causes, running  # noqa: E402 - tests is no package
from planted_engines.running import Seen  # noqa: E402

FAST = pytest.mark.parametrize("item", causes.EMBEDDED, ids=lambda item: item.name)
SLOW = pytest.mark.parametrize("item", [*causes.MEGATRON, *causes.ENGINE], ids=lambda item: item.name)


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("gen_confusion_table", ROOT / "tools" / "gen_confusion_table.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def committed(tool):
    """Cause -> the cells of its line in the committed table."""
    lines = [line.strip("| \n").split(" | ") for line in tool.PAGE.read_text().splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells for cells in lines}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("planted")


def judge(item, folder, committed):
    """One run, one page. Wrong answers that are known stand in the table as wrong, and have to stay what it says."""
    seen = running.see(item, folder)
    said, right = running.answer(item, seen), running.right_here(item)
    if right != item.where_rounded:  # the table is of a processor without such products
        assert said == committed[item.name][6], seen.page
    assert (said in right) == (committed[item.name][7] == "right"), seen.page


@pytest.mark.slow
@FAST
def test_embedded(item, folder, committed):
    """Failing means that an innocent setting is accused, a planted cause missed, or the table of the docs untrue."""
    judge(item, folder, committed)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(300)
@SLOW
def test_engines(item, folder, committed):
    """The same with Megatron-core as the training side, and with vLLM as the rollout."""
    judge(item, folder, committed)


def test_the_table_holds_every_cause_and_nothing_else(committed):
    """Failing means that a cause was added or dropped without measuring: a wrong row could be left out."""
    assert list(committed) == [item.name for item in causes.PLANTED]
    known = {item.name: item for item in causes.PLANTED}
    for name, cells in committed.items():
        truth, said, verdict = cells[3], cells[6], cells[7]
        assert truth == known[name].truth
        assert (verdict == "right") == (said in known[name].right), name


def test_at_least_fifteen_are_planted_of_every_kind():
    """Failing means that the table has become too small to say anything."""
    truths = [item.truth for item in causes.PLANTED]
    assert sum(truth != causes.NONE for truth in truths) >= 15
    assert truths.count(causes.KNOB) >= 5 and truths.count(causes.OPTION) >= 5 and truths.count(causes.HIDDEN) >= 2
    assert truths.count(causes.NONE) >= 4
    assert {runtime for item in causes.PLANTED for runtime in item.pair} >= {"vllm", "torch", "megatron"}


def test_an_experiment_tells_nothing_of_the_truth():
    """Failing means that the analysis could read which setting is guilty: from a name, or from an order of cases."""
    for item in causes.PLANTED:
        document = running.experiment(item, {"path": "r", "sha256": "0" * 64})
        text = json.dumps(document)
        words = ("planted", "cause", "truth", "hidden", "guilty", item.name, item.says, item.truth)
        told = [word for word in (*words, *(name for made in item.hidden.values() for name in made)) if word in text]
        assert not told, (item.name, told)
        paths = [entry["path"] for entry in document["interventions"]]
        assert paths == sorted(paths), "the guilty one does not stand first"


def page(assessment="EXCESS_TRAINING", status="MISMATCH", causes=(), words="", **lists):
    """A page as `xcfg analyze` leaves it. causes: (knob, direction)."""
    empty = {"exonerated": [], "not_exercised": [], "outside": [], "not_varied": []}
    found = {"status": status, "assessment": assessment, "reason": "", **empty, **lists}
    return Seen(found | {"causes": [{"knob": knob, "direction": way} for knob, way in causes]}, words)


OF_KNOB = next(item for item in causes.PLANTED if item.name == "kv-cache")
OF_OPTION = next(item for item in causes.PLANTED if item.name == "option-eps")
OF_NOBODY = next(item for item in causes.PLANTED if item.name == "clean-vllm")
SAYS_OUTSIDE = "outside the declared knobs: runtime_options.training.model_overrides"
SORTED = (
    (OF_KNOB, page(causes=[("rollout.kv_cache_dtype", "narrows")]), causes.NAMED),
    (OF_KNOB, page(causes=[("rollout.kv_cache_dtype", "widens")]), causes.MISSED),
    (OF_KNOB, page(causes=[("rollout.kv_cache_dtype", "narrows"), ("batch.size", "narrows")]), causes.ACCUSED),
    (OF_KNOB, page(causes=[("batch.size", "narrows")]), causes.ACCUSED),
    (OF_KNOB, page(words=SAYS_OUTSIDE), causes.MISSED),
    (OF_KNOB, page(exonerated=["rollout.kv_cache_dtype"]), causes.IDLE),
    (OF_KNOB, page("EXPLAINED_BY_PRECISION"), causes.EXPLAINED),
    (OF_KNOB, page(status="LAUNCH_FAILED", words="rollout.kv_cache_dtype"), causes.MISSED),
    (OF_OPTION, page(words=SAYS_OUTSIDE), causes.OUTSIDE),
    (OF_OPTION, page(words="outside the declared knobs: something"), causes.MISSED),
    (OF_OPTION, page(causes=[("batch.size", "narrows")], words=SAYS_OUTSIDE), causes.ACCUSED),
    (OF_NOBODY, page("EXPLAINED_BY_PRECISION"), causes.EXPLAINED),
    (OF_NOBODY, page("EXPLAINED_BY_PRECISION", causes=[("batch.size", "narrows")]), causes.ACCUSED),
    (OF_NOBODY, page("EXPLAINED_BY_PRECISION", causes=[("batch.size", "widens")]), causes.EXPLAINED),
    (OF_NOBODY, page("EXCESS_GAP", words=SAYS_OUTSIDE), causes.OUTSIDE),
)


@pytest.mark.parametrize(("item", "seen", "said"), SORTED, ids=range(len(SORTED)))
def test_answers_are_sorted_by_hand(item, seen, said):
    """Failing means that a wrong page counts as right, or the other way round."""
    assert running.answer(item, seen) == said


def test_what_is_never_right_is_right_nowhere():
    """Failing means that a miss or an accusation was declared to be the right answer."""
    assert not [item.name for item in causes.PLANTED if {causes.MISSED, causes.ACCUSED} & set(item.right)]
    assert causes.OUTSIDE not in OF_NOBODY.right

"""A set that one scoring leaves open, live: an engine with noise of known rms, and repeats that settle it, or not."""

from __future__ import annotations

import json
import math

import pytest
from xcfg.cli.main import main
from xcfg_analysis.minimize.journey import minimize_experiment
from xcfg_analysis.minimize.show import text

DTYPE = "align rollout.dtype to training"
RMS = 0.01
TRUE = math.expm1(RMS**2 / 2)
"""The mean of exp(d) - 1 - d where d is normal with that rms and mean 0: what is left once the dtypes are equal."""
WRONG, CLOSE = f"k3<={0.9 * TRUE:.3g}", f"k3<={TRUE:.3g}"
NOISY = {
    "experiment_id": "noisy-search",
    "baseline": {
        "batch": {"size": 4},
        "rollout": {"dtype": "bfloat16", "attention_backend": "sdpa"},
        "training": {"compute_dtype": "float32", "attention_backend": "sdpa", "sharding": "unsharded"},
    },
    "interventions": [],
    "align": [{"path": "rollout.dtype", "to": "training"}],
    "operators": {"selected_logprob": {"training": {"backend": "planted.noise", "options": {"rms": RMS}}}},
    "controls": {"reference": False},
}


@pytest.fixture(scope="module")
def noisy(runs, planted, tmp_path_factory):
    """(file, output root, search(objective, repeats), events of the first search); the first search has scored.

    The noise is seeded by the number of the call, and goes on as long as the engine lives.
    """
    folder, events = tmp_path_factory.mktemp("repeats"), []
    file = runs.write_experiment(folder, **NOISY)

    def search(objective, repeats):
        options = {"output_root": folder / "runs", "max_workers": 4, "on_event": events.append}
        return minimize_experiment(file, objective, budget=2, repeats=repeats, plugins=planted, options=options)

    first = search(WRONG, 6)
    return file, folder / "runs", search, first, list(events)


def of(found, *align):
    (trial,) = [trial for trial in found.minimization.trials if trial.align == align]
    return trial


def test_what_one_scoring_leaves_open_stays_open_without_repeats(noisy):
    """Failing means that an interval which holds the limit is called an answer."""
    found = noisy[2](WRONG, 0)
    trial = of(found, DTYPE)
    assert (trial.outcome, trial.repeats, trial.first) == ("UNRESOLVED", 0, "")
    assert trial.interval.low < 0.9 * TRUE < trial.interval.high
    assert trial.reason.endswith("no repeat was allowed; more of them may decide it")
    assert (found.exit_code, found.minimal_sets) == (3, ()) and "UNRESOLVED" in found.conclusion


def test_repeats_settle_it_and_the_answer_is_the_true_one(noisy):
    """Failing means that repeats are taken and not used, or that nobody is told that they decided."""
    _, _, _, found, events = noisy
    trial = of(found, DTYPE)
    assert (trial.first, trial.outcome) == ("UNRESOLVED", "fails"), "by the formula the noise alone exceeds the limit"
    assert 1 <= trial.repeats <= 6 and trial.interval.low > 0.9 * TRUE
    assert trial.interval.low < TRUE < trial.interval.high
    assert (found.exit_code, found.minimization.complete) == (1, True), "every set fails, and that is an answer"
    shown = " ".join(text(found).split())
    assert f"settled {DTYPE}: UNRESOLVED by its first scoring, fails after {trial.repeats} repeats" in shown
    assert of(found).first == "", "what was never open was not repeated"
    repeated = [event["label"] for event in events if event["event"] == "score" and "repeat" in event["label"]]
    assert all(label.startswith(DTYPE) for label in repeated) and len(repeated) >= 3 * trial.repeats


def test_a_limit_at_the_truth_stays_open_and_it_is_said(noisy):
    """Failing means that the end of the budget is taken for an answer."""
    settled = of(noisy[3], DTYPE).repeats
    found = noisy[2](CLOSE, settled)
    trial = of(found, DTYPE)
    assert (trial.first, trial.outcome, trial.repeats) == ("UNRESOLVED", "UNRESOLVED", settled)
    assert f"after {settled} repeats, all that were allowed; more of them may decide it" in trial.reason
    assert (found.exit_code, found.minimization.complete, found.minimal_sets) == (3, False, ())
    assert "open" in text(found) and "all that were allowed" in " ".join(text(found).split())


def test_the_command_says_both(noisy, capsys):
    """Failing means that the command line takes no repeats, or prints an open set as settled."""
    words = ["minimize", str(noisy[0]), "--objective", WRONG, "--budget", "2", "--output-root", str(noisy[1])]
    assert main([*words, "--repeats", "0", "--json"]) == 3
    open_ = json.loads(capsys.readouterr().out)["minimization"]["trials"][1]
    assert (open_["first"], open_["outcome"]) == ("", "UNRESOLVED")
    assert main([*words, "--repeats", "6"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "settled" in shown and "every one fails" in shown

"""Engines that break one thing, through the real command: each ends as promised, and none passes.

Every test names the runs it looks at; they are made once, two at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

ENGINES = ("faulty_engines",)
SHARDED = {"baseline": {"training.sharding": "fsdp"}}
DROPPABLE = {
    "rollout": {"rollout.dtype", "rollout.attention_backend"},
    "training": {"training.compute_dtype", "training.attention_backend"},
}
EAGER = {"rollout.attention_backend": "eager", "training.attention_backend": "eager"}
LOSING = {
    "baseline": EAGER,
    "interventions": [
        {"path": "rollout.dtype", "values": ["float16"]},
        {"path": "training.compute_dtype", "values": ["float16"]},
    ],
}
RUNS = {
    "prefill-as-decode": {},
    "zero-page": {},
    "echo": LOSING,
    "dropping": LOSING,
    "flip-before-digest": SHARDED,
    "flip-after-build": SHARDED,
    "flip-while-scoring": {},
    "swap": {},
    "rank-offset": SHARDED,
    "silent-rank": SHARDED,
    "ownerless-rank": SHARDED,
    "double-rank": SHARDED,
    "half-column": {"interventions": [{"path": "training.attention_backend", "values": ["eager"]}]},
}
TRAINING_ONLY = {
    "flip-before-digest",
    "flip-after-build",
    "rank-offset",
    "silent-rank",
    "ownerless-rank",
    "double-rank",
}


def needs(*names: str) -> Callable:
    def mark(function: Callable) -> Callable:
        function.needs = names
        return function

    return mark


class Run:
    """One run of the baseline on a faulty engine."""

    def __init__(self, lab, frozen, name):
        self.root = lab.folder / "engines" / name
        experiment = lab.experiment(lab.folder / f"{name}.json", frozen, **json.loads(json.dumps(RUNS[name])))
        runtimes = ["--training", f"faulty-{name}"]
        if name not in TRAINING_ONLY:
            runtimes += ["--rollout", f"faulty-{name}"]
        self.done = lab.run(experiment, self.root, *runtimes, plugins=ENGINES)
        self.case = self.done.case()
        self.attempt = lab.attempt(self.root, self.case)
        lab.verified(self.root)

    def document(self, name: str):
        return json.loads((self.attempt / name).read_text())

    def scores(self, arm: str):
        name = "score_rollout.pt" if arm == "rollout_decode" else f"score_{arm}.pt"
        return torch.load(self.attempt / name, weights_only=True)["columns"]


@pytest.fixture(scope="session")
def engine_runs(lab, frozen, background):
    futures = background({name: (lambda name=name: Run(lab, frozen, name)) for name in RUNS})
    return lambda name: futures[name].result()


@needs("prefill-as-decode")
def test_prefill_in_place_of_decode_is_no_decode(engine_runs, lab):
    """Failing means that a number is called a decode score although no token was decoded."""
    run = engine_runs("prefill-as-decode")
    assert (run.done.code, run.case["status"]) == (3, "INVALID_IDENTITY")
    assert "counted 0 single-token forwards, and its 115 decoded tokens need at least 39" in run.case["reason"]
    lab.without_numbers(run.attempt)


@needs("zero-page")
def test_a_zeroed_page_moves_later_decode_tokens_only(engine_runs, clean, frozen):
    """Failing means that the decode arm does not read the cache that it is said to read."""
    from xcfg.identity.rollout import read_rollout

    run, step = engine_runs("zero-page"), 8
    assert (run.done.code, run.case["status"]) == (1, "MISMATCH")
    rollout = read_rollout(frozen)
    whole = torch.load(clean.attempt / "score_rollout.pt", weights_only=True)["columns"]
    prefill = torch.load(clean.attempt / "score_rollout_prefill.pt", weights_only=True)["columns"]
    same = torch.equal(
        prefill["selected_logprob"].nan_to_num(), run.scores("rollout_prefill")["selected_logprob"].nan_to_num()
    )
    assert same, "a prefill value moved"
    gap = (whole["selected_logprob"] - run.scores("rollout_decode")["selected_logprob"]).abs().numpy()
    for sequence in range(rollout.sequence_count):
        span = rollout.span(sequence)
        decoded = gap[span][rollout.active[span]]
        assert decoded[: step + 1].max() == 0, "a token moved before its page was damaged"
        assert decoded[step + 1 :].min() > 0, "a token did not notice the damage"


@needs("dropping")
def test_a_lost_keyword_is_a_fallback(engine_runs):
    """Failing means that a knob counts as applied although the engine never received it."""
    run = engine_runs("dropping")
    assert run.done.code == 3
    lost = set()
    for case in run.done.document["cases"]:
        assert case["status"] == "FALLBACK" and case["edges"] == {}
        failure = json.loads(
            (run.attempt.parents[1] / case["case_id"] / case["attempt_id"] / "failure.json").read_text()
        )
        wrong = {item["path"] for item in failure["applications"] if item["status"] != "applied"}
        side = "training" if wrong & DROPPABLE["training"] else "rollout"
        assert len(wrong) == 1 and wrong <= DROPPABLE[side], "exactly the lost keyword is noticed"
        lost |= wrong
    assert len(lost) > 1, "the draw lost the same keyword every time; choose another seed"


@needs("echo")
def test_an_echoed_request_is_never_applied(engine_runs):
    """Failing means that an adapter is believed because it repeats what it was told."""
    run = engine_runs("echo")
    assert run.done.code == 3
    assert {case["status"] for case in run.done.document["cases"]} == {"UNOBSERVABLE"}
    for case in run.done.document["cases"]:
        failure = json.loads(
            (run.attempt.parents[1] / case["case_id"] / case["attempt_id"] / "failure.json").read_text()
        )
        assert {item["status"] for item in failure["applications"]} == {"unobservable"}
        assert case["edges"] == {}


@needs("flip-before-digest")
def test_one_wrong_bit_on_rank_1_before_the_digest(engine_runs, lab):
    """Failing means that drift is measured between two different models."""
    run = engine_runs("flip-before-digest")
    assert (run.done.code, run.case["status"]) == (3, "INVALID_IDENTITY")
    assert "weights differ from the checkpoint cast to float32" in run.case["reason"]
    lab.without_numbers(run.attempt)
    assert run.case["edges"] == {} and run.case["threshold"] is None


@needs("flip-after-build")
def test_one_wrong_bit_on_rank_1_after_the_digest(engine_runs, lab):
    """Failing means that the digest of the build stands for weights that are no longer there."""
    run = engine_runs("flip-after-build")
    assert (run.done.code, run.case["status"]) == (3, "INVALID_IDENTITY")
    assert "rank 1: parameters or buffers changed" in run.case["reason"]
    assert "rank 0: parameters or buffers changed" not in run.case["reason"]
    lab.without_numbers(run.attempt)


@needs("flip-while-scoring")
def test_one_bit_that_flips_while_a_score_runs(engine_runs, lab):
    """Failing means that a score may be half of one model and half of another."""
    run = engine_runs("flip-while-scoring")
    assert (run.done.code, run.case["status"]) == (3, "INVALID_IDENTITY")
    assert "parameters or buffers changed" in run.case["reason"]
    lab.without_numbers(run.attempt)


@needs("swap")
def test_two_sequences_that_change_places(engine_runs, lab):
    """Failing means that the request is taken for what entered the model."""
    run = engine_runs("swap")
    assert (run.done.code, run.case["status"]) == (3, "INVALID_IDENTITY")
    errors = run.document("comparison.json")["identity_errors"]
    assert [error.partition(":")[0] for error in errors] == ["training", "training"]
    assert all(
        f"token_ids of sequence {number} are not the frozen rollout's" in errors[number - 1] for number in (1, 2)
    )
    lab.without_numbers(run.attempt)


@needs("rank-offset")
def test_a_rank_that_is_off_is_the_only_one_that_says_so(engine_runs):
    """Failing means that the culprit of a sharded run cannot be found, or that values were copied between ranks."""
    run = engine_runs("rank-offset")
    assert (run.done.code, run.case["status"]) == (1, "MISMATCH")
    ranks = run.document("comparison.json")["edges"]["training_vs_rollout"]["by_rank"]
    groups = {item["group"]: item for item in ranks}
    assert set(groups) == {"training:0", "training:1", "rollout_decode:0"}
    good, bad = groups["training:0"], groups["training:1"]
    assert good["mismatches"] == 0 and good["max_abs"] < 1e-5
    assert bad["mismatches"] == bad["active_tokens"] == 48
    assert bad["bias"] == pytest.approx(1e-3, abs=1e-5)


@needs("rank-offset")
def test_sharding_is_shown_by_parameters_and_gathers(engine_runs, clean, lab):
    """Failing means that FSDP counts as applied although each rank holds the whole model."""
    case = clean.done.case("training.sharding=fsdp")
    attempts = [lab.attempt(clean.root, case), engine_runs("rank-offset").attempt]
    for attempt in attempts:
        identity, actual = (json.loads((attempt / name).read_text()) for name in ("identity.json", "actual.json"))
        builds, reports = identity["builds"]["training"], identity["reports"]["training"]
        assert len(builds) == len(reports) == 2
        held = [build["weights"]["local_parameters"] for build in builds]
        total = {build["weights"]["total_parameters"] for build in builds}
        assert len(total) == 1 and sum(held) == min(total) and max(held) < min(total)
        assert all(report["counters"]["all_gathers"] > 0 for report in reports)
        records = [item for item in actual["applications"]["training"] if item["path"] == "training.sharding"]
        assert [(item["rank"], item["actual"], item["status"]) for item in records] == [
            (0, "fsdp", "applied"),
            (1, "fsdp", "applied"),
        ]
        for item in records:
            shown = {piece["source"]: (piece["kind"], piece["detail"]) for piece in item["evidence"]}
            assert shown["all-gather collectives counted"][0] == "execution"
            assert int(shown["all-gather collectives counted"][1]) > 0
            assert shown["parameters on this rank"][0] == "state"


@needs("silent-rank", "ownerless-rank", "double-rank")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("silent-rank", "rank 1 of 2 never reported"),
        ("ownerless-rank", "48 active tokens have no owner among 2 ranks"),
        ("double-rank", "another process answers for rank"),
    ],
)
def test_a_rank_too_few_or_too_many(engine_runs, name, said):
    """Failing means that half of the tokens are missing, or are there twice, and nobody says so."""
    run = engine_runs(name)
    assert (run.done.code, run.case["status"]) == (4, "MISSING_RANK")
    assert said in run.case["reason"]
    assert run.case["edges"] == {}
    assert not list(run.attempt.glob("*.pt"))


@needs("half-column")
def test_scores_in_a_dtype_that_hides_rounding_are_no_artifact(engine_runs):
    """Failing means that an engine's rounded report is compared, or that it takes the other cases with it."""
    run = engine_runs("half-column")
    assert run.done.code == 3
    assert [case["status"] for case in run.done.document["cases"]] == ["INVALID_ARTIFACT"] * 2
    assert all("float16" in case["reason"] or "<f2" in case["reason"] for case in run.done.document["cases"])
    assert not list(run.attempt.glob("*.pt"))


@needs(*RUNS)
def test_no_fault_passes(engine_runs):
    """Failing means that a fault is a pass."""
    for name in RUNS:
        assert "PASS" not in engine_runs(name).done.statuses.values(), name


def test_every_fault_is_installed(lab):
    """Failing means that the runs above failed since their plugin is not there."""
    done = lab.xcfg("plugins", "show", "faulty-engines", "--json", plugins=ENGINES)
    assert done.code == 0, done.stderr
    text = json.dumps(done.document)
    assert all(f"faulty-{name}" in text for name in RUNS), text
    assert len(list((Path(__file__).parent / "plugins/faulty_engines/faulty_engines").glob("*.py"))) > len(RUNS)

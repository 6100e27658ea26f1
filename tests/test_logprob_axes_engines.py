"""Each axis of the selected log probability on one side of real vLLM against real Megatron-core, held against float64.

Both compute in float32 with `xcfg.ablation_logp`. What each engine hands to its operator is kept by a run with the
capturing backend; from those logits float64 says how far an axis moves the values of that side, and that it leaves the
other side alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xcfg

sys.path.insert(0, str(Path(__file__).parent))
from logprob_axes.shared import (
    BASELINE,
    ONE_SIDED,
    PADDED,
    REFUSED,
    TINY,
    Captured,
    by_axis,
    captured,
    capturing,
    check_applied,
    check_moved,
    experiment,
    one_side,
    rounding,
    values,
)

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]
ARMS = {"rollout": ("rollout_prefill", "rollout_decode"), "training": ("training",)}
ENGINES = {"rollout": "vllm", "training": "megatron"}
UNCHANGED = ("padded_vocab_size", 512)
"""The model has as many: nothing is added."""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """What each engine hands to its operator, by arm."""
    pytest.importorskip("vllm")
    pytest.importorskip("megatron.core")
    folder = tmp_path_factory.mktemp("captured")
    choices = dict.fromkeys(ENGINES, capturing(folder / "kept"))
    file = experiment(folder, "capture", baseline={}, operators={"selected_logprob": choices})
    xcfg.run(file, output_root=folder / "runs", **ENGINES)
    return captured(folder / "runs" / "capture", folder / "kept")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run with every axis on either side alone."""
    pytest.importorskip("vllm")
    pytest.importorskip("megatron.core")
    folder = tmp_path_factory.mktemp("axes")
    axes = [*ONE_SIDED, *REFUSED, UNCHANGED]
    file = experiment(folder, "axes", interventions=[*one_side("rollout", axes), *one_side("training", axes)])
    summary = xcfg.run(file, output_root=folder / "runs", **ENGINES)
    return by_axis(folder / "runs" / "axes", summary)


def log_softmax(own: Captured) -> torch.Tensor:
    """Return torch's float64 log-softmax of an engine's logits at the selected ids [A]."""
    return torch.log_softmax(own.logits.double(), dim=-1).gather(-1, own.selected[:, None])[:, 0]


@pytest.mark.parametrize("arm", [arm for arms in ARMS.values() for arm in arms])
def test_the_baseline_is_the_log_softmax_of_the_engine_s_own_logits(ran, own, arm):
    """If this fails, the operator was not handed what the capture kept, or its padded columns are not masked."""
    base, line = ran["baseline", ""]
    assert line.status == "PASS"
    assert len(own[arm].active) == 384
    assert (values(base, arm, own[arm].active) - log_softmax(own[arm])).abs().max() <= rounding(own[arm])


@pytest.mark.parametrize("side", ARMS)
@pytest.mark.parametrize("name", [name for name, _ in ONE_SIDED])
def test_an_axis_on_one_side_moves_the_drift_as_float64_says(ran, own, name, side):
    """If this fails, a knob does not reach the engine, reaches the other side, or computes something else."""
    (case, line), (base, _) = ran[name, side], ran["baseline", ""]
    for arm in ARMS["training" if side == "rollout" else "rollout"]:
        unmoved = [item.score(arm)["selected_logprob"] for item in (case, base)]
        assert np.array_equal(*unmoved, equal_nan=True)
    for arm in ARMS[side]:
        if check_moved(name, case, base, arm, own[arm]) is not None:
            assert line.status == "MISMATCH"
    check_applied(name, case, side, ARMS[side])


@pytest.mark.parametrize("side", ARMS)
@pytest.mark.parametrize("name", [name for name, _ in REFUSED])
def test_another_distribution_is_no_drift(ran, name, side):
    """If this fails, a temperature or a shifted target of one engine is reported as a number."""
    _, line = ran[name, side]
    assert line.status == "INVALID_IDENTITY"
    assert line.edges == {}
    assert ("temperature:0.7" if name == "transform_chain" else "selected_ids") in line.reason


@pytest.mark.parametrize("side", ARMS)
def test_an_option_that_changed_nothing_did_not_run(ran, side):
    """If this fails, an engine takes what it was asked for as what ran."""
    _, line = ran[UNCHANGED[0], side]
    assert line.status == "FALLBACK"
    assert f"{UNCHANGED[0]}={UNCHANGED[1]}" in line.reason and f"{UNCHANGED[0]}=0" in line.reason


@pytest.mark.parametrize("side", ARMS)
def test_the_columns_that_were_summed_over_are_stated(ran, side):
    """If this fails, the gate over vocabularies is told of other columns than the sums had."""
    for key, policy in ((("baseline", ""), "mask"), (("vocab_padding_policy", side), "include")):
        case, _ = ran[key]
        for arm in ARMS[side]:
            said = [report.mechanism["vocabulary"] for report in case.identity.reports[arm]]
            assert said == [{"policy": policy, "real": 512, "padded": PADDED}]


REAL, RANKS_HOLD, WIDEST = 500, 512, 1024
"""Of a vocabulary of 500, what two ranks of Megatron-core pad it to, and what the operator adds columns up to."""
AT_TWO_RANKS = {
    "logprob.merge_order": REAL,
    "logprob.vocab_padding_policy": WIDEST,
    "training.vocab_padding_policy": RANKS_HOLD,
}
"""What is changed -> over how many columns the sums run then."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Two ranks of Megatron-core that hold a padded vocabulary: (case and line by what is changed, what was handed)."""
    pytest.importorskip("megatron.core")
    folder = tmp_path_factory.mktemp("ranks")
    prompts, place = TINY.parent / "tiny-prompts.jsonl", folder / "rollout"
    frozen = xcfg.freeze("builtin:tiny-qwen3-500", prompts, place, max_new_tokens=16, limit=3)
    identity = {"rollout": {"path": str(place), "sha256": frozen.sha256}}
    split = {"training.tensor_parallel_size": 2}
    choices = {"rollout": "reference", "training": capturing(folder / "kept")}
    file = experiment(folder, "capture", identity=identity, baseline=split, operators={"selected_logprob": choices})
    xcfg.run(file, output_root=folder / "runs", training="megatron")
    interventions = [
        *one_side("training", [("merge_order", "reverse_vocab_shard_index"), ("vocab_padding_policy", "include")]),
        {"path": "training.vocab_padding_policy", "values": ["include"]},
    ]
    baseline = {**BASELINE, "logprob.padded_vocab_size": WIDEST, **split}
    file = experiment(folder, "ranks", identity=identity, baseline=baseline, interventions=interventions)
    summary = xcfg.run(file, output_root=folder / "runs", training="megatron")
    cases = xcfg.open_run(folder / "runs" / "ranks").cases
    found = {
        next(iter(case.planned.delta), "baseline").partition("@")[0]: (case, line)
        for case, line in zip(cases, summary.cases, strict=True)
    }
    return found, captured(folder / "runs" / "capture", folder / "kept")["training"]


@pytest.mark.parametrize(("path", "columns"), AT_TWO_RANKS.items())
def test_ranks_that_hold_a_padded_vocabulary_sum_over_what_they_state(ranks, path, columns):
    """If this fails, columns of the engine's padding pass for the operator's, or the other way round."""
    found, own = ranks
    (case, line), (base, _) = found[path], found["baseline"]
    name = path.rpartition(".")[2]
    assert own.logits.shape[1] == REAL
    assert (values(base, "training", own.active) - log_softmax(own)).abs().max() <= rounding(own)
    moves = check_moved(name, case, base, "training", own, columns=columns) is not None
    assert line.status == ("MISMATCH" if moves else "PASS")
    said = [report.mechanism["vocabulary"] for report in case.identity.reports["training"]]
    policy = "include" if columns > REAL else "mask"
    assert said == 2 * [{"policy": policy, "real": REAL, "padded": columns if moves else WIDEST}]
    if path.startswith("logprob"):
        check_applied(name, case, "training", ("training",))

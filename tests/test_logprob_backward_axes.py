"""The axes of the log probability that only training has, in a real run: gradient and entropy as float64 says.

A score runs no backward. A planned knob of one has the training side look at the gradient of some rows of its logits;
what it reports is compared here with the same rows of a run that kept the training engine's logits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xcfg
from torch.distributions import Categorical
from xcfg_torch.backward import ROWS_PER_CALL

TINY = Path(__file__).parents[1] / "examples" / "quickstart" / "tiny.json"
BACKEND = "xcfg.ablation_logp"
BASELINE = {
    "logprob.vocab_shard_map": "even:8",
    "logprob.reduce": "allgather_partials_fixed_merge",
    "logprob.backward_impl": "softmax_minus_onehot",
}
GRADIENT = [("backward_impl", "autograd"), ("grad_downcast_at", "softmax"), ("grad_downcast_at", "dlogits")]
ENTROPY = ("entropy_reduce", "partials")
SCORED = ("training", "rollout_prefill", "rollout_decode")


def write(folder: Path, name: str, baseline: dict, interventions: list, operators: dict) -> Path:
    """Write the tiny experiment in float32."""
    document = json.loads(TINY.read_text())
    document["identity"]["rollout"]["path"] = str(TINY.parent / "tiny-rollout")
    document |= {
        "experiment_id": name,
        "baseline": {
            "batch": {"size": 8, "padding_side": "right"},
            "rollout": {"dtype": "float32"},
            "training": {"compute_dtype": "float32"},
            **baseline,
        },
        "interventions": interventions,
        "controls": {"reference": False},
        "operators": {"selected_logprob": operators},
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(document))
    return file


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """(logits [n, V], selected [n]) of every call of the operator on the training side, in order."""
    folder = tmp_path_factory.mktemp("captured")
    kept = folder / "kept"
    kept.mkdir()
    options = {"folder": str(kept), "factory": "xcfg_ops_logp.reference:build", "options": "{}"}
    operators = {"rollout": "reference", "training": {"backend": "xcfg.capture_logp", "options": options}}
    xcfg.run(write(folder, "capture", {}, [], operators), output_root=folder / "runs")
    found = [torch.load(file, weights_only=True) for file in sorted(kept.glob("process-*/*.pt"))]
    return [(item["logits"], item["selected"]) for item in found]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run with every option: (folder of runs, {(name, value) or `baseline`: (case, summary line)})."""
    folder = tmp_path_factory.mktemp("axes")
    interventions = [
        {"path": "logprob.backward_impl", "values": ["autograd"]},
        {"path": "logprob.grad_downcast_at", "values": ["softmax", "dlogits"]},
        {"path": f"logprob.{ENTROPY[0]}", "side": "training", "values": [ENTROPY[1]]},
    ]
    file = write(folder, "axes", BASELINE, interventions, dict.fromkeys(("rollout", "training"), BACKEND))
    summary = xcfg.run(file, output_root=folder / "runs", columns=("entropy",))
    found = {}
    for case, line in zip(xcfg.open_run(folder / "runs" / "axes").cases, summary.cases, strict=True):
        key, value = next(iter(case.planned.delta.items()), ("logprob.baseline", None))
        found[key.partition("@")[0].partition(".")[2], value] = (case, line)
    return file, found


def gaps(calls, name: str, value: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float64 [N, V] of the rows that are looked at: how far the option moves the gradient, and the gradient."""
    logits = torch.cat([rows[:ROWS_PER_CALL] for rows, _ in calls]).double()
    selected = torch.cat([ids[:ROWS_PER_CALL] for _, ids in calls])
    onehot, softmax = torch.nn.functional.one_hot(selected, logits.shape[1]).double(), logits.softmax(-1)
    exact = onehot - softmax
    if (name, value) == ("grad_downcast_at", "dlogits"):
        return exact.float().bfloat16().double() - exact, exact
    if (name, value) == ("grad_downcast_at", "softmax"):
        return softmax - softmax.float().bfloat16().double(), exact
    return torch.zeros_like(exact), exact


@pytest.mark.slow
@pytest.mark.parametrize("which", [("baseline", None), *GRADIENT])
def test_the_gradient_moves_as_float64_says(ran, calls, which):
    """If this fails, a knob of the backward reaches no backward, or another rounding runs than the one named."""
    case, line = ran[1][which]
    said = case.actual.provenance["training"]["mechanism"][0]["backward"]
    wanted, exact = gaps(calls, *which)
    rounding = torch.finfo(torch.float32).eps
    assert (said["rows"], said["broken_rows"]) == (len(exact), 0)
    assert said["max_abs"] == pytest.approx(float(wanted.abs().max()), rel=1e-3, abs=rounding)
    assert said["rel_l2"] == pytest.approx(float(wanted.norm() / exact.norm()), rel=0.01, abs=rounding)
    if which[0] == "grad_downcast_at":
        assert float(wanted.abs().max()) > 100 * rounding, "the prediction would also hold for nothing at all"
    assert line.gradients["training"].max_abs == said["max_abs"]
    assert set(line.gradients) == {"training"}, "a rollout trains nothing"


@pytest.mark.slow
@pytest.mark.parametrize("which", [*GRADIENT, ENTROPY])
def test_an_axis_of_training_moves_no_log_probability(ran, which):
    """If this fails, looking at a gradient or an entropy changes the score, and a drift is invented."""
    (case, line), (base, ground) = ran[1][which], ran[1]["baseline", None]
    for arm in SCORED:
        mine, its = case.score(arm)["selected_logprob"], base.score(arm)["selected_logprob"]
        assert np.isfinite(mine).any() and np.array_equal(mine, its, equal_nan=True)
    assert line.status == ground.status == "PASS"
    assert line.edges == ground.edges


@pytest.mark.slow
@pytest.mark.parametrize("which", [*GRADIENT, ENTROPY])
def test_an_axis_is_read_back_from_what_ran(ran, which):
    """If this fails, a knob passes by what was configured."""
    name, value = which
    case, _ = ran[1][which]
    (item,) = [item for item in case.actual.applications["training"] if item.path == f"logprob.{name}"]
    assert (item.status.value, item.actual, item.exercised.value) == ("applied", value, "yes")
    assert item.evidence[0].kind.value == "execution"
    backward = {f"logprob.{name}" for name, _ in GRADIENT}
    for arm in ("rollout_prefill", "rollout_decode"):
        assert not {item.path for item in case.actual.applications[arm]} & backward


@pytest.mark.slow
def test_the_entropy_moves_within_rounding(ran, calls):
    """If this fails, the reduction over ranks computes another entropy, or the column is still torch's own."""
    (case, _), (base, _) = ran[1][ENTROPY], ran[1]["baseline", None]
    active = case.score("training")["active"]
    found, plain = (item.score("training")["entropy"][active] for item in (case, base))
    rows = torch.cat([logits for logits, _ in calls])
    exact = Categorical(logits=rows.double()).entropy().numpy()
    rounding = 4 * torch.finfo(torch.float32).eps * float(exact.max() + rows.abs().max())
    for values in (found, plain):
        assert np.abs(np.sort(values) - np.sort(exact)).max() <= rounding
    assert (found != plain).any(), "sums of eight ranges are rounded otherwise than those of the whole row"
    for arm in ("rollout_prefill", "rollout_decode"):
        mine, its = case.score(arm)["entropy"], base.score(arm)["entropy"]
        assert np.array_equal(mine, its, equal_nan=True), "the other side reduces as before"


@pytest.mark.slow
def test_a_person_is_told_of_the_gradient(ran):
    """If this fails, a gradient that is rounded in training looks like a run without any difference."""
    file, runs = ran[0], ran[0].parent / "runs"
    told = [
        subprocess.run([sys.executable, "-m", "xcfg", *words], capture_output=True, text=True, timeout=300, check=False)
        for words in (
            ("run", file, "--columns", "entropy", "--output-root", runs),
            ("analyze", runs / "axes"),
        )
    ]
    lines = [line for line in told[0].stdout.splitlines() if "gradient of training" in line]
    assert any("grad_downcast_at=softmax" in line and "rel. L2" in line for line in lines), told[0]
    assert len(lines) == 4, "baseline and entropy are one line"
    table = told[1].stdout.partition("how far the gradient of the log probability lies from float64's")[2]
    assert "grad_downcast_at=dlogits training 0.0" in " ".join(table.split()), told[1]


@pytest.mark.slow
def test_what_nothing_showed_is_no_pass(tmp_path):
    """If this fails, an entropy that was never reduced, or a softmax that the graph does not have, passes."""
    baseline = {key: value for key, value in BASELINE.items() if key != "logprob.backward_impl"}
    operators = dict.fromkeys(("rollout", "training"), BACKEND)
    asked = [{"path": "logprob.grad_downcast_at", "values": ["softmax"]}]
    lines = xcfg.run(write(tmp_path, "graph", baseline, asked, operators), output_root=tmp_path / "runs").cases
    (line,) = [line for line in lines if "softmax" in line.label]
    assert line.status == "FALLBACK" and "grad_downcast_at" in line.reason
    asked = [{"path": "logprob.entropy_reduce", "side": "training", "values": ["partials"]}]
    lines = xcfg.run(write(tmp_path, "silent", baseline, asked, operators), output_root=tmp_path / "runs").cases
    (line,) = [line for line in lines if "partials" in line.label]
    assert line.status == "UNOBSERVABLE" and "--columns entropy" in line.reason

"""Each axis of the selected log probability on one side of a real run: the drift moves as float64 says, or not at all.

The baseline computes both sides in float32 with `xcfg.ablation_logp`; what the training side is changed to is compared
with the float64 reference on the training engine's own logits, which a run with the capturing backend keeps.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import xcfg
from xcfg_ops_logp.ablation.operator import transformed
from xcfg_ops_logp.matrix.capture import SCALE
from xcfg_ops_logp.reference import evaluate

TINY = Path(__file__).parents[1] / "examples" / "quickstart" / "tiny.json"
BACKEND = "xcfg.ablation_logp"
BASELINE = {"logprob.vocab_shard_map": "even:8", "logprob.reduce": "allgather_partials_fixed_merge"}
ONE_SIDED = [
    ("vocab_padding_policy", "include"),
    ("vocab_shard_map", "megatron:2:384"),
    ("reduce", "allreduce_partials"),
    ("merge_order", "reverse_vocab_shard_index"),
    ("head_dtype", "bfloat16"),
    ("accum_dtype", "float64"),
    ("downcast_at", "result"),
    ("selected_gather", "masked_sum_allreduce"),
    ("block_size", 16),
]
REFUSED = [("transform_chain", "temperature:0.7"), ("shift_convention", "internal")]


def experiment(folder: Path, name: str, **changes) -> Path:
    """Write the tiny experiment in float32 with the ablation backend on both sides."""
    document = json.loads(TINY.read_text())
    document["identity"]["rollout"]["path"] = str(TINY.parent / "tiny-rollout")
    document |= {
        "experiment_id": name,
        "baseline": {
            "batch": {"size": 8, "padding_side": "right"},
            "rollout": {"dtype": "float32"},
            "training": {"compute_dtype": "float32"},
        },
        "interventions": [],
        "controls": {"reference": False},
        "operators": {"selected_logprob": dict.fromkeys(("rollout", "training"), BACKEND)},
        **changes,
    }
    document["baseline"] |= BASELINE | {"logprob.padded_vocab_size": 768}
    file = folder / f"{name}.json"
    file.write_text(json.dumps(document))
    return file


@pytest.fixture(scope="module")
def logits(tmp_path_factory):
    """The training engine's own logits [T, V] and selected ids [T] of the active tokens, in the order of tokens."""
    folder = tmp_path_factory.mktemp("captured")
    kept = folder / "kept"
    kept.mkdir()
    options = {"folder": str(kept), "factory": "xcfg_ops_logp.reference:build", "options": "{}"}
    choices = {"rollout": "reference", "training": {"backend": "xcfg.capture_logp", "options": options}}
    document = json.loads(experiment(folder, "capture").read_text())
    document["operators"]["selected_logprob"] = choices
    document["baseline"] = {key: value for key, value in document["baseline"].items() if not key.startswith("logprob")}
    (folder / "capture.json").write_text(json.dumps(document))
    xcfg.run(folder / "capture.json", output_root=folder / "runs")
    numbers = xcfg.open_run(folder / "runs" / "capture").cases[0].score("training")["selected_logprob"]
    rows = {}
    for file in kept.glob("process-*/*.pt"):
        held = torch.load(file, weights_only=True)
        rows |= {
            held["first"] + index: (held["logits"][index], held["selected"][index])
            for index in range(len(held["value"]))
        }
    active = np.flatnonzero(np.isfinite(numbers))
    found = [rows[round(float(number) / SCALE)] for number in numbers[active]]
    return active, torch.stack([item[0] for item in found]), torch.stack([item[1] for item in found])


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run with every axis on the training side alone."""
    folder = tmp_path_factory.mktemp("axes")
    interventions = [
        {"path": f"logprob.{name}", "side": "training", "values": [value]} for name, value in (*ONE_SIDED, *REFUSED)
    ]
    file = experiment(folder, "axes", interventions=interventions)
    summary = xcfg.run(file, output_root=folder / "runs")
    run = xcfg.open_run(folder / "runs" / "axes")
    return {
        next(iter(case.planned.delta), "baseline").partition("@")[0].rpartition(".")[2]: (case, line)
        for case, line in zip(run.cases, summary.cases, strict=True)
    }


def predicted(name: str, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor | None:
    """How far the axis moves each value in exact arithmetic; None where it is the same function."""
    exact = evaluate(logits, selected)
    if name == "vocab_padding_policy":
        return -torch.log1p((768 - logits.shape[1]) * torch.exp(-exact.logsumexp))
    if name == "head_dtype":
        return evaluate(logits.bfloat16(), selected).logprob - exact.logprob
    if name == "downcast_at":
        return exact.logprob.float().bfloat16().double() - exact.logprob
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, _ in ONE_SIDED])
def test_an_axis_on_one_side_moves_the_drift_as_float64_says(ran, logits, name):
    """If this fails, a knob does not reach the engine, reaches the other side, or computes something else."""
    (case, line), (base, _) = ran[name], ran["baseline"]
    active, rows, selected = logits
    exact = evaluate(rows, selected)
    moved = torch.from_numpy(
        case.score("training")["selected_logprob"][active].astype(np.float64)
        - base.score("training")["selected_logprob"][active].astype(np.float64)
    )
    assert np.array_equal(
        case.score("rollout_decode")["selected_logprob"],
        base.score("rollout_decode")["selected_logprob"],
        equal_nan=True,
    )
    wanted = predicted(name, rows, selected)
    rounding = 4 * torch.finfo(torch.float32).eps * float(exact.logprob.abs().max() + exact.logsumexp.abs().max())
    if name == "downcast_at":  # a value next to the middle of two bfloat16 may round to either
        assert ((moved - wanted).abs() <= rounding).double().mean() > 0.99
    else:
        assert (moved - (torch.zeros_like(moved) if wanted is None else wanted)).abs().max() <= rounding
    if wanted is not None:
        assert wanted.abs().max() > 10 * rounding, "the prediction would also hold for nothing at all"
        assert line.status == "MISMATCH"
    if name == "selected_gather":
        assert not moved.any(), "one owner: the gather moves no bit"
    if name in ("merge_order", "accum_dtype", "vocab_shard_map"):
        assert moved.any(), "another order or dtype of the same sum is seen in some bit"
    applied = [
        item
        for item in case.actual.applications["training"]
        if item.path == f"logprob.{name}" and item.side == "training"
    ]
    assert applied and {item.status.value for item in applied} == {"applied"}
    assert "execution" in {evidence.kind.value for item in applied for evidence in item.evidence}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, _ in REFUSED])
def test_another_distribution_is_no_drift(ran, name):
    """If this fails, a temperature or a shifted target of one side is reported as a number."""
    _, line = ran[name]
    assert line.status == "INVALID_IDENTITY"
    assert line.edges == {}
    assert ("temperature:0.7" if name == "transform_chain" else "selected_ids") in line.reason
    assert transformed(torch.ones(1), "temperature", 0.5) == 2


@pytest.mark.slow
def test_what_a_backend_lacks_or_does_not_do_is_said(tmp_path):
    """If this fails, a knob is ignored where the backend has no such option, or passes where it changed nothing."""
    interventions = [
        {"path": "logprob.merge_order", "side": "rollout", "values": ["pairwise_tree"]},
        {"path": "logprob.block_size", "side": "training", "values": [4096]},
    ]
    file = experiment(tmp_path, "lacks", interventions=interventions)
    document = json.loads(file.read_text())
    document["operators"]["selected_logprob"]["rollout"] = "native"
    document["baseline"] = {key: value for key, value in document["baseline"].items() if not key.startswith("logprob")}
    file.write_text(json.dumps(document))
    summary = xcfg.run(file, output_root=tmp_path / "runs")
    lines = {case.label: case for case in summary.cases}
    assert {line.status for label, line in lines.items() if "merge_order" in label} == {"UNSUPPORTED"}
    assert "merge_order" in next(line.reason for label, line in lines.items() if "merge_order" in label)
    fallback = next(line for label, line in lines.items() if "block_size" in label)
    assert fallback.status == "FALLBACK"
    assert "block_size" in fallback.reason

"""Each axis of the selected log probability on one side of a real run: the drift moves as float64 says, or not at all.

The baseline computes both sides in float32 with `xcfg.ablation_logp`; what the training side is changed to is compared
with the float64 reference on the training engine's own logits, which a run with the capturing backend keeps. Here the
engine is torch; test_logprob_axes_engines.py has vLLM and Megatron-core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xcfg
from xcfg_ops_logp.ablation.operator import transformed

sys.path.insert(0, str(Path(__file__).parent))
from logprob_axes.shared import (
    BACKEND,
    ONE_SIDED,
    REFUSED,
    by_axis,
    captured,
    capturing,
    check_applied,
    check_moved,
    experiment,
    one_side,
)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """What the training engine hands to its operator."""
    folder = tmp_path_factory.mktemp("captured")
    choices = {"rollout": "reference", "training": capturing(folder / "kept")}
    file = experiment(folder, "capture", baseline={}, operators={"selected_logprob": choices})
    xcfg.run(file, output_root=folder / "runs")
    return captured(folder / "runs" / "capture", folder / "kept")["training"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run with every axis on the training side alone."""
    folder = tmp_path_factory.mktemp("axes")
    file = experiment(folder, "axes", interventions=one_side("training", [*ONE_SIDED, *REFUSED]))
    summary = xcfg.run(file, output_root=folder / "runs")
    return by_axis(folder / "runs" / "axes", summary)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, _ in ONE_SIDED])
def test_an_axis_on_one_side_moves_the_drift_as_float64_says(ran, own, name):
    """If this fails, a knob does not reach the engine, reaches the other side, or computes something else."""
    (case, line), (base, _) = ran[name, "training"], ran["baseline", ""]
    rollout = [item.score("rollout_decode")["selected_logprob"] for item in (case, base)]
    assert np.array_equal(*rollout, equal_nan=True)
    if check_moved(name, case, base, "training", own) is not None:
        assert line.status == "MISMATCH"
    check_applied(name, case, "training", ("training",))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, _ in REFUSED])
def test_another_distribution_is_no_drift(ran, name):
    """If this fails, a temperature or a shifted target of one side is reported as a number."""
    _, line = ran[name, "training"]
    assert line.status == "INVALID_IDENTITY"
    assert line.edges == {}
    assert ("temperature:0.7" if name == "transform_chain" else "selected_ids") in line.reason
    assert transformed(torch.ones(1), "temperature", 0.5) == 2


@pytest.mark.slow
def test_what_a_backend_lacks_or_does_not_do_is_said(tmp_path):
    """If this fails, a knob is ignored where the backend has no such option, or passes where it changed nothing."""
    interventions = [
        *one_side("rollout", [("merge_order", "pairwise_tree")]),
        *one_side("training", [("block_size", 4096)]),
    ]
    choices = {"rollout": "native", "training": BACKEND}
    file = experiment(
        tmp_path, "lacks", baseline={}, interventions=interventions, operators={"selected_logprob": choices}
    )
    summary = xcfg.run(file, output_root=tmp_path / "runs")
    lines = {case.label: case for case in summary.cases}
    assert {line.status for label, line in lines.items() if "merge_order" in label} == {"UNSUPPORTED"}
    assert "merge_order" in next(line.reason for label, line in lines.items() if "merge_order" in label)
    fallback = next(line for label, line in lines.items() if "block_size" in label)
    assert fallback.status == "FALLBACK"
    assert "block_size" in fallback.reason

"""A claim of determinism, held against the flags that the workers of both sides read while they scored."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import xcfg

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "quickstart"
KERNEL = """
from xcfg.plugin import hookimpl
from xcfg.schema.operators import OperatorBackendDescriptor


@hookimpl
def xcfg_operator_backends():
    return (
        OperatorBackendDescriptor(
            operation="selected_logprob",
            backend_id="careless.logprob",
            summary="log-softmax, after it switched torch's deterministic algorithms off for itself",
            factory="careless_kernel:build",
        ),
    )


def build():
    import torch

    def operator(logits, selected):
        torch.use_deterministic_algorithms(False)
        return torch.log_softmax(logits.float(), dim=-1).gather(-1, selected.unsqueeze(-1)).squeeze(-1)

    return operator
"""
CLAIM = {side: {"deterministic_algorithms": True} for side in ("rollout", "training")}
CARELESS = {"selected_logprob": {"training": "careless.logprob"}}


@pytest.fixture
def score(tmp_path, monkeypatch):
    """score(name, **document): the one case of the tiny example on the embedded runtime, sealed."""
    site = tmp_path / "site"
    facts = site / "careless_kernel-0.1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: careless-kernel\nVersion: 0.1\n")
    (facts / "entry_points.txt").write_text("[xcfg]\ncareless-kernel = careless_kernel\n")
    (site / "careless_kernel.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    shutil.copytree(EXAMPLE / "tiny-rollout", tmp_path / "tiny-rollout")

    def run(name, **changes):
        document = json.loads((EXAMPLE / "tiny.json").read_text()) | {"experiment_id": name, "interventions": []}
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({**document, "controls": {"reference": False}, **changes}))
        xcfg.run(file, plugins=xcfg.load_plugins(), output_root=tmp_path / "runs")
        assert all(item.ok for item in xcfg.verify(tmp_path / "runs" / name).attempts), "the evidence does not hold"
        (case,) = xcfg.iter_cases(tmp_path / "runs" / name)
        return case

    return run


def probes(case):
    """Arm that an engine scored -> what each of its ranks read, from the sealed evidence."""
    document = json.loads((case.path / "identity.json").read_text())
    return {
        arm: [item["mechanism"]["determinism"] for item in items] for arm, items in document["reports"].items() if items
    }


def test_flags_of_both_sides_are_read_in_the_workers_and_sealed(score):
    """If this fails, a claim is judged by what the experiment asks for."""
    case = score("claimed", runtime_options=CLAIM)
    assert case.comparison.status in ("PASS", "MISMATCH"), case.comparison.reason
    found = probes(case)
    assert {"training", "rollout_decode"} <= set(found)
    for ranks in found.values():
        assert [item["flags"]["deterministic_algorithms"] for item in ranks] == [True]
        assert [item["flags"]["CUBLAS_WORKSPACE_CONFIG"] for item in ranks] == [":4096:8"]
        assert [item["flags"]["NCCL_ALGO"] for item in ranks] == ["Tree"]
        assert [item["libraries"] for item in ranks] == [["torch"]], "NCCL's setting binds nothing on a CPU"


def test_a_kernel_that_takes_the_claim_back_is_seen(score):
    """If this fails, a switch that was on when the engine was built passes as on while it scored."""
    case = score("careless", operators=CARELESS, runtime_options=CLAIM)
    comparison = case.comparison
    assert comparison.status == "NOT_COMPARABLE"
    assert "runtime_options.training.deterministic_algorithms claims determinism of training" in comparison.reason
    assert {item["path"] for item in comparison.undeclared_differences} == {
        "mechanism.determinism.deterministic_algorithms"
    }
    assert probes(case)["training"][0]["flags"]["deterministic_algorithms"] is False
    unclaimed = score("unclaimed", operators=CARELESS)
    assert unclaimed.comparison.status in ("PASS", "MISMATCH"), "nobody claimed anything"

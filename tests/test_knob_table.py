"""tools/gen_knob_table.py: outcomes by hand, and figures against scores that are read here on their own."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
import xcfg
from xcfg.plugin.manager import PluginManager
from xcfg.schema.arguments import ArgumentRow, Effect, Outcome
from xcfg.schema.names import Applied, Exercised, Lifecycle
from xcfg.schema.runtime import Capability, KnobApplication, RuntimeDescriptor

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("gen_knob_table", ROOT / "tools" / "gen_knob_table.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run of a tiny model on both sides, with three knobs that move and one that the runtime refuses."""
    root = tmp_path_factory.mktemp("runs")
    document = json.loads((ROOT / "examples/sweep/torch.json").read_text())
    document["identity"]["rollout"]["path"] = str(ROOT / "examples/quickstart/tiny-rollout")
    document["interventions"] = [
        {"path": "training.compute_dtype", "values": ["float32"]},
        {"path": "training.attention_backend", "values": ["flash_attention_2"]},
        {"path": "rollout.enforce_eager", "values": [False]},
        {"path": "batch.size", "values": [1]},
    ]
    file = root / "one.json"
    file.write_text(json.dumps(document))
    xcfg.run(file, rollout="torch", training="torch", output_root=root / "runs")
    return root / "runs" / "sweep-torch"


def score(folder: Path, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    columns = torch.load(folder / name, weights_only=True)["columns"]
    return columns["selected_logprob"].double(), columns["active"].bool()


@pytest.mark.slow
def test_a_row_says_what_the_stored_scores_say(tool, finished):
    """Failing means that a figure of the table is not the difference of the two scores it names."""
    found = {(row.side, row.knob): row for _, row in tool.rows(finished, PluginManager.load())}
    assert set(found) == {
        ("training", "training.compute_dtype"),
        ("training", "training.attention_backend"),
        ("rollout", "rollout.enforce_eager"),
        ("training", "batch.size"),
        ("rollout", "batch.size"),
    }
    moved = found["training", "training.compute_dtype"]
    assert (moved.outcome, moved.value, moved.baseline) == (Outcome.APPLIED, "float32", "bfloat16")
    assert (moved.platform, moved.runner, moved.dtype) == ("cpu", "", "bfloat16")
    baseline = next(
        folder
        for folder in finished.glob("cases/*/attempt-0001")
        if json.loads((folder / "requested.json").read_text())["delta"] == {}
    )
    case = finished / "cases" / moved.case / moved.attempt
    (effect,) = moved.effects
    (first, active), (second, _) = score(case, "score_training.pt"), score(baseline, "score_training.pt")
    difference = (first - second).abs()[active]
    assert effect.tokens == int(active.sum()) > 0
    assert effect.max_abs == float(difference.max()) > 0
    assert effect.mean_abs == pytest.approx(float(difference.mean()), rel=1e-12)
    assert effect.differing == int((difference > 0).sum())
    assert {effect.arm for effect in found["rollout", "batch.size"].effects} == {"rollout_prefill", "rollout_decode"}


@pytest.mark.slow
def test_what_the_adapter_lacks_is_no_refusal_of_the_engine(tool, finished):
    """Failing means that the table blames an engine for what only our adapter does not offer."""
    found = {row.knob: row for _, row in tool.rows(finished, PluginManager.load()) if row.knob != "batch.size"}
    assert found["rollout.enforce_eager"].outcome is Outcome.NOT_RUN
    assert found["training.attention_backend"].outcome is Outcome.REFUSED
    assert found["training.attention_backend"].effects == ()


RUNTIME = RuntimeDescriptor(
    name="r",
    summary="",
    adapter="a:b",
    placement="a:b",
    arms={},
    capabilities=(Capability(path="k", side="training", values=("a",)),),
)
MOVED = (Effect(arm="training", tokens=3, differing=1, mean_abs=0.5, max_abs=1.0),)
STILL = (Effect(arm="training", tokens=3, differing=0, mean_abs=0.0, max_abs=0.0),)


def said(status: str, exercised: str = "yes") -> list[KnobApplication]:
    return [
        KnobApplication(
            path="k",
            side="training",
            rank=0,
            requested="a",
            materialized="a",
            actual="b",
            status=Applied(status),
            lifecycle=Lifecycle.REQUEST,
            exercised=Exercised(exercised),
        )
    ]


@pytest.mark.parametrize(
    ("effects", "found", "exercised", "expected"),
    [
        (MOVED, said("applied"), "yes", Outcome.APPLIED),
        (MOVED, said("applied", "no"), "no", Outcome.APPLIED),
        (STILL, said("applied"), "yes", Outcome.NO_EFFECT),
        (STILL, said("applied", "no"), "no", Outcome.NOT_RUN),
        (STILL, said("applied", "unknown"), "unknown", Outcome.NOT_RUN),
        (STILL, said("fallback"), "yes", Outcome.IGNORED),
        (MOVED, said("fallback"), "yes", Outcome.IGNORED),
        (MOVED, said("unobservable"), "yes", Outcome.UNOBSERVABLE),
        (MOVED, said("applied") + said("fallback"), "yes", Outcome.IGNORED),
        (STILL, said("unsupported"), "yes", Outcome.REFUSED),
        (STILL, said("error"), "yes", Outcome.NOT_RUN),
        (MOVED, [], "", Outcome.NOT_RUN),
        ((), said("applied"), "yes", Outcome.NOT_RUN),
    ],
)
def test_outcomes(tool, effects, found, exercised, expected):
    """Failing means that the table claims what no evidence shows."""
    assert tool._outcome(RUNTIME, "a", "k", "training", effects, found, exercised, None)[0] is expected


@pytest.mark.parametrize(
    ("status", "arm", "details", "value", "expected"),
    [
        ("UNSUPPORTED", "", {"unsupported": {"k": "no"}}, "a", Outcome.REFUSED),
        ("UNSUPPORTED", "", {"unsupported": {"k": "no"}}, "z", Outcome.NOT_RUN),
        ("UNSUPPORTED", "", {"unsupported": {"other": "no"}}, "a", Outcome.NOT_RUN),
        ("UNSUPPORTED", "training", {}, "a", Outcome.REFUSED),
        ("UNSUPPORTED", "rollout_prefill", {}, "a", Outcome.NOT_RUN),
        ("LAUNCH_FAILED", "training", {}, "a", Outcome.REFUSED),
        ("LAUNCH_FAILED", "rollout_decode", {}, "a", Outcome.NOT_RUN),
        ("TIMEOUT", "training", {}, "a", Outcome.NOT_RUN),
        ("WORKER_FAILED", "training", {}, "a", Outcome.NOT_RUN),
    ],
)
def test_outcomes_of_failures(tool, status, arm, details, value, expected):
    """Failing means that a timeout, or the other side's failure, is called a refusal of this engine."""
    failure = tool.Failure(schema_version="", status=status, reason="why\nmore", arm=arm, details=details)
    assert tool._outcome(RUNTIME, value, "k", "training", (), [], "", failure)[0] is expected


def test_rows_of_other_platforms_stay(tool):
    """Failing means that a run on a CPU wipes out what ran on a GPU."""

    def row(platform: str, case: str, runner: str = "v1") -> ArgumentRow:
        return ArgumentRow(
            side="rollout",
            knob="k",
            value=1,
            baseline=0,
            platform=platform,
            outcome=Outcome.APPLIED,
            runner=runner,
            case=case,
        )

    old = (row("cuda", "g"), row("cuda", "h", "v2"), row("cpu", "c"))
    assert {item.case for item in tool.merged(old, [row("cpu", "new")])} == {"g", "h", "new"}
    assert tool.merged(old, ()) == tool.merged(reversed(old), ())


@pytest.mark.parametrize(
    ("name", "runner"),
    [
        ("vllm.v1.worker.cpu_model_runner.CPUModelRunner", "v1"),
        ("vllm.v1.worker.gpu_model_runner.GPUModelRunner", "v1"),
        ("vllm.v1.worker.gpu.model_runner.GPUModelRunner", "v2"),
        ("", ""),
    ],
)
def test_runner_classes(tool, name, runner):
    """Failing means that figures of one runner stand in the column of the other."""
    assert tool._runner({"mechanism": [{"runner": name}]}) == runner

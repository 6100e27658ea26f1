"""Through `xcfg run`, Hugging Face against Megatron-core: what ends how, and which planted fault is caught by what."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from mcore_inputs import random_rollout
from xcfg.identity.rollout import write_rollout
from xcfg.schema.identity import SamplingRecord

PLUGINS = Path(__file__).parent / "plugins"
BASELINE = {
    "batch.size": 4,
    "batch.padding_side": "right",
    "rollout.dtype": "float32",
    "training.compute_dtype": "float32",
}
MODEL = {"training.attention_backend": "model_default"}
TWO = {"training.tensor_parallel_size": 2}
POLICY = "training.vocab_padding_policy"
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("megatron") is None, reason="Megatron-core is not installed"),
]


class Command:
    """`xcfg run` in a process of its own, on one frozen rollout over the tiny Qwen3 with 500 entries."""

    def __init__(self, folder):
        self.folder = folder
        self.rollout = self.frozen("rollout")

    def frozen(self, name, **more):
        """Write a rollout and return how an experiment names it."""
        folder = self.folder / name
        write_rollout(random_rollout(500, (17, 9, 12), 3, uri="builtin:tiny-qwen3-500", **more), folder)
        return {"path": name, "sha256": hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()}

    def run(self, name, runtime="megatron", baseline=None, options=None, rollout=None, **changes):
        """Return (exit code, label -> case, output root)."""
        document = {
            "schema_version": "cross_config.experiment_config.v2",
            "experiment_id": name,
            "scenario_id": "megatron",
            "identity": {"rollout": rollout or self.rollout},
            "baseline": {**BASELINE, **MODEL, **(baseline or {})},
            "controls": {"reference": False},
            "runtime_options": {"rollout": {"threads": 1}, "training": {"threads": 1, **(options or {})}},
            **changes,
        }
        file, root = self.folder / f"{name}.json", self.folder / f"{name}-runs"
        file.write_text(json.dumps(document))
        words = [
            sys.executable,
            "-m",
            "xcfg",
            "run",
            str(file),
            "--training",
            runtime,
            "--json",
            "--output-root",
            str(root),
        ]
        env = {**os.environ, "PYTHONPATH": str(PLUGINS), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=200, check=False)
        assert done.stdout, done.stderr[-3000:]
        return done.returncode, {case["label"]: case for case in json.loads(done.stdout)["cases"]}, root


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    return Command(tmp_path_factory.mktemp("command"))


@pytest.fixture(scope="module")
def varied(command):
    """One run whose cases vary knobs and operators of the training side, two of them not to be had."""
    changes = {
        POLICY: ["include"],
        "training.temperature": [0.7],
        "training.recompute": ["full"],
        "training.rope_fusion": [True],
        "training.layer_spec": ["transformer_engine"],
        "training.context_parallel_size": [2],
        "training.attention_backend": ["flash_attention_2"],
        "operators.attention.training": ["torch.attention_float32"],
        "operators.norm.training": ["reference"],
        "operators.selected_logprob.training": ["megatron.cross_entropy_te"],
    }
    interventions = [{"path": path, "values": values} for path, values in changes.items()]
    return command.run("varied", interventions=interventions)


def case_of(cases, word):
    found = [case for label, case in cases.items() if word in label]
    assert len(found) == 1, list(cases)
    return found[0]


def test_the_baseline_passes_in_float32(varied):
    """If this fails, Hugging Face and Megatron-core are not the same function, or a knob was not read back."""
    case = varied[1]["baseline"]
    assert case["status"] == "PASS", case["reason"]
    assert case["edges"]["training_vs_rollout"]["max_abs"] < 1e-5


@pytest.mark.parametrize(
    ("word", "status", "says"),
    [
        ("recompute", "UNOBSERVABLE", "backward pass"),
        ("rope_fusion", "UNSUPPORTED", "apply_rope_fusion is not available"),
        ("layer_spec", "UNSUPPORTED", "pip install 'xcfg-megatron[te]'"),
        ("context_parallel_size", "UNSUPPORTED", "only supported by TEDotProductAttention"),
        ("attention_backend", "UNSUPPORTED", "supports 'model_default'"),
        ("selected_logprob", "UNSUPPORTED", "device cpu; it runs on cuda"),
        ("temperature", "INVALID_IDENTITY", "temperature:0.7"),
    ],
)
def test_what_cannot_be_compared_says_why(varied, word, status, says):
    """If this fails, a case gets a number for something that did not run, or fails without its reason."""
    case = case_of(varied[1], word)
    assert (case["status"], case["edges"]) == (status, {}), case["reason"]
    assert says in case["reason"]


@pytest.mark.parametrize("word", ["operators.attention", "operators.norm"])
def test_an_injected_reference_passes_in_float32(varied, word):
    """If this fails, an operator through the whole command is not what it is in one process."""
    case = case_of(varied[1], word)
    assert case["status"] == "PASS", case["reason"]


def test_a_declared_vocabulary_policy_is_measured(varied):
    """If this fails, the declared axis has no number; twelve rows of zeros cost about 2e-2 in any dtype."""
    case = case_of(varied[1], "vocab_padding_policy")
    assert case["status"] == "MISMATCH", case["reason"]
    assert 1e-3 < case["edges"]["training_vs_rollout"]["max_abs"] < 0.2


def test_an_undeclared_vocabulary_policy_is_not_comparable(command):
    """If this fails, a side that sums over padding is compared as if it did not."""
    _, cases, _ = command.run("undeclared", options={"vocab_padding_policy": "include"})
    case = cases["baseline"]
    assert case["status"] == "NOT_COMPARABLE", case["reason"]
    assert "training sums over padded columns, 512 for 500" in case["reason"]
    assert case["edges"]["training_vs_rollout"]["max_abs"] > 1e-3, "the numbers are kept"


def test_padding_that_was_forgotten_is_seen_in_the_sums(command):
    """If this fails, the policy that a score reports is the one that was asked for."""
    _, cases, _ = command.run("forgotten", "megatron-padding-forgotten")
    assert cases["baseline"]["status"] == "NOT_COMPARABLE", cases["baseline"]["reason"]
    _, cases, _ = command.run("forgotten-knob", "megatron-padding-forgotten", {POLICY: "mask"})
    assert cases["baseline"]["status"] == "FALLBACK", cases["baseline"]["reason"]
    assert POLICY in cases["baseline"]["reason"]


def test_a_mask_that_does_not_mask_shows_in_float32(command):
    """If this fails, the numbers themselves do not catch what every report denies."""
    _, cases, _ = command.run("broken", "megatron-mask-broken")
    assert cases["baseline"]["status"] == "MISMATCH", cases["baseline"]["reason"]


@pytest.mark.parametrize(
    ("fault", "tensor"),
    [
        ("flipped-shard", "model.layers.2.mlp.up_proj.weight"),
        ("flipped-norm", "model.layers.1.input_layernorm.weight"),
    ],
)
def test_one_bit_on_one_rank_is_another_model(command, fault, tensor):
    """If this fails, a rank may hold other weights than the checkpoint and the drift is blamed on arithmetic."""
    code, cases, _ = command.run(fault, f"megatron-{fault}", TWO)
    assert (code, cases["baseline"]["status"]) == (3, "INVALID_IDENTITY"), cases["baseline"]["reason"]
    assert tensor in cases["baseline"]["reason"]


def test_a_rank_that_leaves_is_missing(command):
    """If this fails, the scores of the ranks that stayed are taken for the engine's."""
    code, cases, _ = command.run("silent", "megatron-silent-rank", TWO)
    assert cases["baseline"]["status"] == "MISSING_RANK", cases["baseline"]["reason"]
    assert code == 4 and cases["baseline"]["edges"] == {}


def test_a_split_context_passes_with_an_injected_attention(command):
    """If this fails, tokens of a split context are owned twice or not at all, or attend to the wrong keys."""
    operators = {"attention": {"rollout": "native", "training": "torch.attention_float32"}}
    _, cases, root = command.run("context", baseline={"training.context_parallel_size": 2}, operators=operators)
    assert cases["baseline"]["status"] == "PASS", cases["baseline"]["reason"]
    owners = [
        [
            (record["coordinates"]["cp"], record["role"], record["parallelism"])
            for record in json.loads(file.read_text())["records"]
        ]
        for file in root.glob("*/scores/*/ranks.json")
    ]
    assert [(0, "owner", "context"), (1, "owner", "context")] in owners


def test_sequence_parallelism_passes_with_an_injected_norm(command):
    """If this fails, what one process showed is lost on the way through the supervisor."""
    operators = {"norm": {"rollout": "native", "training": "torch.rms_norm_float32"}}
    baseline = {**TWO, "training.sequence_parallel": True}
    _, cases, _ = command.run("sequence", baseline=baseline, operators=operators)
    assert cases["baseline"]["status"] == "PASS", cases["baseline"]["reason"]


def test_a_temperature_that_both_sides_apply_is_comparable(command):
    """If this fails, values recorded under a temperature can never be held against training."""
    chain = SamplingRecord(temperature=0.7, logprobs_mode="processed_logprobs", transform_chain=("temperature:0.7",))
    rollout = command.frozen("warm-rollout", sampling=chain)
    _, cases, _ = command.run("warm", baseline={"training.temperature": 0.7}, rollout=rollout)
    assert cases["baseline"]["status"] == "PASS", cases["baseline"]["reason"]
    assert cases["baseline"]["edges"]["training_vs_rollout"]["max_abs"] < 1e-5


def test_a_checkpoint_of_another_step_is_no_drift(command):
    """Failing means that stale or later weights on one side pass for numerical drift."""
    code, cases, _ = command.run("revision", runtime="megatron-other-revision")
    case = cases["baseline"]
    assert (code, case["status"]) == (3, "INVALID_IDENTITY"), case
    assert "model.layers.1." in case["reason"] and not case["edges"], case

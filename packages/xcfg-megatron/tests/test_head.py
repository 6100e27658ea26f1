"""`linear_selected_logprob` in the place of Megatron's output layer: values, what is read back, what is refused."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import mcore_hf
import pytest
import torch
from xcfg.identity.rollout import read_rollout

HEAD = "linear_selected_logprob"
PATH = f"operators.{HEAD}"
REFERENCE, ABLATION = "xcfg.reference_linear_logp", "xcfg.ablation_linear_logp"
OPTIONS = {
    "materialization": "chunked",
    "chunk_size": 16,
    "head_gemm_kernel": "fixed_order",
    "fusion_impl": "chunked_linear_ce",
}
KNOBS = {f"logprob.{name}": value for name, value in OPTIONS.items()}
WIDE = {"materialization": "chunked", "chunk_size": 4096}
CONTEXT = {"training.context_parallel_size": 2}
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("megatron") is None, reason="Megatron-core is not installed"),
]


@pytest.fixture(scope="module")
def jobs(job):
    """What one rank is asked for, by name."""

    def head(name, backend, knobs=None, *, options=None, **more):
        return job(name, knobs, {HEAD: backend}, operator_options={HEAD: options or {}}, **more)

    include = {"training.vocab_padding_policy": "include"}
    made = [
        head("native", "native"),
        head("reference", REFERENCE),
        head("tied", REFERENCE, tied=True),
        head("masked", REFERENCE, vocabulary=500),
        head("included", REFERENCE, include, vocabulary=500),
        job("included-native", include, vocabulary=500),
        head("options", ABLATION, KNOBS, options=OPTIONS),
        head("wide", ABLATION, {f"logprob.{name}": value for name, value in WIDE.items()}, options=WIDE),
        head("narrow-native", "native", dtype="bfloat16"),
        head("narrow-reference", REFERENCE, dtype="bfloat16"),
        head("both", REFERENCE, {"logp.backend": "xcfg.reference_logp"}),
        head("tempered", REFERENCE, {"training.temperature": 0.7}),
    ]
    return {item["name"]: item for item in made}


@pytest.fixture(scope="module")
def answers(lab, jobs):
    return lab.run(list(jobs.values()))[0]


@pytest.mark.parametrize("name", ["native", "reference", "tied", "masked", "options"])
def test_values_are_those_of_transformers(answers, jobs, name):
    """Failing means that the operator is handed other rows, ids or weights than those of the model's own head."""
    rollout = read_rollout(Path(jobs[name]["rollout"]))
    expected = mcore_hf.values(jobs[name]["checkpoint"], torch.float32, rollout)
    assert float((answers[name].values.double() - expected).abs().max()) <= 5e-6


def test_padded_rows_of_the_head_take_part_where_the_policy_says_so(answers):
    """Failing means that a padded vocabulary is cut off in silence, or summed over in silence."""
    own, mine, masked = (answers[name].values for name in ("included-native", "included", "masked"))
    assert float((mine - own).abs().max()) <= 5e-6
    assert float((mine - masked).abs().max()) > 1e-3
    policies = [answers[name].said["report"]["mechanism"]["vocabulary"]["policy"] for name in ("included", "masked")]
    assert policies == ["include", "mask"]


def test_an_exact_head_is_drift_of_the_head_in_bfloat16(answers):
    """Failing means that the product is still Megatron's, whose logits are rounded to bfloat16."""
    drift = (answers["narrow-reference"].values - answers["narrow-native"].values).abs()
    largest = float(answers["narrow-native"].values.abs().max())
    assert 1e-3 < float(drift.max()) < 2 * torch.finfo(torch.bfloat16).eps * largest


@pytest.mark.parametrize(
    ("name", "backend"), [("native", "megatron.head_then_logprob"), ("reference", REFERENCE), ("options", ABLATION)]
)
def test_what_ran_is_read_back_with_evidence(answers, name, backend):
    """Failing means that a head counts as applied where nothing was called."""
    item = answers[name].knob(PATH)
    assert (item["status"], item["actual"], item["exercised"]) == ("applied", backend, "yes")
    assert item["evidence"][0]["kind"] == "execution"
    counters = answers[name].said["report"]["counters"]
    injected = name != "native"
    assert (counters[f"operator.{HEAD}"] > 0, counters["operator.selected_logprob"] > 0) == (injected, not injected)
    assert counters["head"] == counters["forwards"] == 1


def test_options_are_those_of_the_largest_call(answers):
    """Failing means that an option that changed nothing counts as applied, or that one that ran does not."""
    for path, value in KNOBS.items():
        item = answers["options"].knob(path)
        assert (item["status"], item["actual"], item["exercised"]) == ("applied", value, "yes")
        assert item["evidence"][0]["kind"] == "execution"
    built = {item["path"]: item["status"] for item in answers["options"].said["build"]["applications"]}
    assert {built[path] for path in KNOBS} == {"applied"}, "the probe has few rows, and decides nothing"
    wide = answers["wide"].knob("logprob.chunk_size")
    assert (wide["status"], wide["actual"]) == ("fallback", 0)


@pytest.mark.parametrize(("name", "told"), [("both", "are both asked for"), ("tempered", "acts on logits")])
def test_what_needs_logits_is_refused(answers, name, told):
    """Failing means that one of two operators is dropped, or that hidden states are divided by a temperature."""
    assert answers[name].said["kind"] == "unsupported"
    assert told in answers[name].said["error"]


@pytest.mark.parametrize(
    ("sabotage", "told"), [("head-unplugged", "was not reached"), ("logits-scaled", "does something to its logits")]
)
def test_a_head_that_did_not_stand_is_no_score(lab, job, sabotage, told):
    """Failing means that values of another head, or without a scale of the model, are reported as the operator's."""
    asked = job(sabotage, None, {HEAD: REFERENCE}, sabotage=sabotage)
    said = lab.run([asked])[0][sabotage].said
    assert told in said["error"]


def test_two_ranks(lab, job):
    """Failing means that a shard of the weights is scored as the whole, or that a split context loses tokens."""
    attention = {"attention": "torch.sdpa"}
    jobs = [
        job("split", {"training.tensor_parallel_size": 2}, {HEAD: REFERENCE}),
        job("context", CONTEXT, {**attention, HEAD: REFERENCE}),
        job("context-native", CONTEXT, attention),
    ]
    for rank in lab.run(jobs, world=2):
        assert rank["split"].said["kind"] == "unsupported"
        assert "2 tensor-parallel ranks" in rank["split"].said["error"]
        mine, own = (rank[name].columns["selected_logprob"] for name in ("context", "context-native"))
        assert torch.equal(mine.isfinite(), own.isfinite()) and bool(mine.isfinite().any())
        assert float((mine - own).nan_to_num().abs().max()) <= 5e-6
        assert rank["context"].knob(PATH)["status"] == "applied"

"""A real vLLM engine on a CPU: its numbers against Hugging Face, and what it says of itself."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from xcfg.identity.attest import expected_attestations, weight_digest
from xcfg.schema.names import Applied, Phase
from xcfg.schema.worker import ScoreRequest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
ARMS = ("rollout_prefill", "rollout_decode")


@pytest.mark.parametrize("arm", ARMS)
def test_the_numbers_are_those_of_hugging_face(scores, oracle, rollout, arm):
    values = scores[arm][1]["selected_logprob"].numpy()
    np.testing.assert_array_equal(np.isnan(values), ~rollout.active)
    assert np.nanmax(np.abs(values - oracle)) < 2e-5


@pytest.mark.parametrize("arm", ARMS)
def test_it_attests_to_what_entered(scores, rollout, arm):
    report = scores[arm][0]
    assert report.attestations == expected_attestations(rollout, consumed_last=arm == "rollout_prefill")
    assert report.compute_dtype == "float32" and report.transforms == ()
    assert report.state_unchanged and report.fold_before == report.fold_after


def test_decode_is_decode(scores, rollout):
    report, columns = scores["rollout_decode"]
    phase = columns["phase"].numpy()
    first = np.flatnonzero(phase == Phase.FIRST_TOKEN.value)
    assert len(first) == rollout.sequence_count and set(phase[rollout.active]) <= {1, 2}
    longest = max(int(rollout.active[rollout.span(item)].sum()) for item in range(rollout.sequence_count))
    assert report.single_token_forwards >= longest - 1
    batch = columns["step_batch"].numpy()
    assert batch[rollout.active].min() >= 1 and batch.max() == 3, "max_num_seqs is 3"
    assert scores["rollout_prefill"][0].single_token_forwards == 0
    assert "logits processor" in report.mechanism["scorer"] and "CPUModelRunner" in report.mechanism["runner"]


def test_every_knob_is_read_back(engine, scores):
    for report in (engine.built, scores["rollout_prefill"][0], scores["rollout_decode"][0]):
        status = {item.path: item.status for item in report.applications}
        assert set(status.values()) == {Applied.APPLIED}, status
    assert status["rollout.custom_ops"] is Applied.APPLIED, "told although nobody asks for it"
    exercised = {item.path: item.exercised.value for item in scores["rollout_decode"][0].applications}
    assert exercised["rollout.max_num_seqs"] == "yes", "4 requests were submitted to 3 seats"
    assert exercised["rollout.enable_prefix_caching"] == "no"


def test_determinism_flags_are_those_of_the_worker(scores):
    """Failing means that a claim of determinism is held against a process that does not score, or against nothing."""
    for arm in ARMS:
        said = scores[arm][0].mechanism["determinism"]
        assert said["flags"]["deterministic_algorithms"] is torch.are_deterministic_algorithms_enabled()
        assert None not in said["flags"].values() and said["libraries"] == ["torch"]


def test_the_weights_are_the_checkpoint_s_by_its_names(engine, checkpoint):
    """Failing means that packed, fused and padded weights cannot be told from others."""
    stored = load_file(checkpoint / "model.safetensors")
    found = engine.built.weights.tensors
    assert found == {name: weight_digest(tensor.float()) for name, tensor in stored.items()}


def test_a_repeat_is_the_same_to_the_bit(engine, scores, rollout):
    again = engine.adapter.score(ScoreRequest(id="again", arm="rollout_prefill"), rollout)[1]["selected_logprob"]
    assert torch.equal(again.nan_to_num(), scores["rollout_prefill"][1]["selected_logprob"].nan_to_num())


def test_one_wrong_weight_shows_in_the_fold_and_in_the_digest(engine, rollout, checkpoint):
    """Failing means that a packed layer could change unseen; it is put back at the end."""
    core = engine.adapter.engine.llm.llm_engine.engine_core.engine_core
    layer = core.model_executor.driver_worker.model_runner.model.model.layers[0].input_layernorm
    before = layer.weight.data[0].clone()
    try:
        layer.weight.data[0] *= 1.5
        report, _ = engine.adapter.score(ScoreRequest(id="bent", arm="rollout_prefill"), rollout)
        assert not report.state_unchanged and report.fold_before != report.fold_after
        digests = engine.adapter.engine.every_rank("xcfg_weights", str(checkpoint))[0]
        assert digests["differing"] == ["model.layers.0.input_layernorm.weight"]
    finally:
        layer.weight.data[0] = before
        engine.adapter.score(ScoreRequest(id="mended", arm="rollout_prefill"), rollout)


def test_a_packed_head_that_is_not_its_weight_shows_in_the_digest(engine, checkpoint):
    """Failing means that the copy which computes could be another than the one that is attested."""
    core = engine.adapter.engine.llm.llm_engine.engine_core.engine_core
    head = core.model_executor.driver_worker.model_runner.model.lm_head
    kept = head.weight.data.clone()
    try:
        head.weight.data[3, 5] += 1.0
        digests = engine.adapter.engine.every_rank("xcfg_weights", str(checkpoint))[0]
        assert digests["tensors"]["lm_head.weight"] != weight_digest(head.weight.data)
    finally:
        head.weight.data.copy_(kept)


def test_tokens_hidden_from_attention_are_refused(engine, rollout):
    tensors = {**rollout.tensors, "attention_mask": np.arange(len(rollout.token_ids)) != 0}
    hidden = SimpleNamespace(tensors=tensors, manifest=rollout.manifest)
    with pytest.raises(Exception, match="hides tokens from attention"):
        engine.adapter.score(ScoreRequest(id="x", arm="rollout_prefill"), hidden)


def test_a_replaced_sampler_is_not_the_engine_s_own(engine, rollout):
    """Failing means that a plugin's log probabilities pass for vLLM's."""
    from vllm.v1.sample.sampler import Sampler

    plain = Sampler.gather_logprobs
    Sampler.gather_logprobs = staticmethod(lambda *items, **named: plain(*items, **named))
    try:
        report, _ = engine.adapter.score(ScoreRequest(id="x", arm="rollout_prefill"), rollout)
    finally:
        Sampler.gather_logprobs = staticmethod(plain)
    status = {item.path: item.status for item in report.applications}
    assert status["logp.backend"] is Applied.UNOBSERVABLE


@pytest.mark.parametrize(("cap", "scale"), [(2.0, 1.0), (None, 0.5), (2.0, 0.5)])
def test_a_soft_cap_and_a_scale_of_the_head_are_told(engine, rollout, checkpoint, formula, scores, cap, scale):
    """Failing means that a head which caps or scales its logits passes for one that does not, or says so in vain."""
    core = engine.adapter.engine.llm.llm_engine.engine_core.engine_core
    model = core.model_executor.driver_worker.model_runner.model
    before = model.logits_processor.soft_cap, model.logits_processor.scale
    try:
        model.logits_processor.soft_cap, model.logits_processor.scale = cap, scale
        found = {arm: engine.adapter.score(ScoreRequest(id="capped", arm=arm), rollout) for arm in ARMS}
    finally:
        model.logits_processor.soft_cap, model.logits_processor.scale = before
    chain = [f"soft_cap:{cap!r}"] * (cap is not None) + [f"logit_scale:{scale!r}"] * (scale != 1.0)

    def head(logits):
        capped = logits if cap is None else (logits / cap).tanh() * cap
        return capped * scale

    exact = formula(checkpoint, rollout, head=head)
    for arm, (report, columns) in found.items():
        assert report.transforms == tuple(chain)
        values = columns["selected_logprob"].numpy()
        assert (
            np.nanmax(np.abs(values - exact))
            < 2e-5
            < np.nanmax(np.abs(values - scores[arm][1]["selected_logprob"].numpy()))
        )


@pytest.mark.parametrize("name", ["VLLM_CPU_SGL_KERNEL", "VLLM_ATTENTION_BACKEND"])
def test_a_variable_that_this_vllm_does_not_read_is_refused(name):
    """Failing means that an experiment names a kernel which nothing chooses, and passes."""
    from xcfg.errors import ConfigError
    from xcfg_vllm.build import _check_variables
    from xcfg_vllm.options import parse_options

    with pytest.raises(ConfigError, match=f"reads no variable '{name}'"):
        _check_variables(parse_options({"environment": {name: "1"}}))


@pytest.mark.parametrize("columns", [("entropy",)])
def test_what_it_cannot_do_is_unsupported(engine, rollout, columns):
    with pytest.raises(Exception, match="no score column") as error:
        engine.adapter.score(ScoreRequest(id="x", arm="rollout_prefill", columns=columns), rollout)
    assert error.value.error_kind == "unsupported"


def test_the_provenance_names_versions_and_no_path(engine, checkpoint):
    text = json.dumps(engine.built.provenance)
    assert "versions" in text and str(checkpoint) not in text


def test_the_memory_of_prompt_log_probabilities_is_among_the_facts(engine, checkpoint):
    """By hand: 512 padded columns; 32 rows of logits, their copy and result, beside 24 rows of the request before."""
    found = engine.built.provenance["facts"]["memory"]
    assert found["prompt_logprobs"] == 512 * (32 * (4 + 4 + 4) + 24 * 4)
    assert found["weights"] == 2 * (checkpoint / "model.safetensors").stat().st_size and found["cache"] == 2**30


def test_a_sequence_of_one_token_is_no_fault(engine):
    """Failing means that a legal rollout cannot be replayed: vLLM takes no empty prompt."""
    rollout = short_rollout()
    report, columns = engine.adapter.score(ScoreRequest(id="short", arm="rollout_decode"), rollout)
    assert report.attestations == expected_attestations(rollout, consumed_last=False)
    values = columns["selected_logprob"].numpy()
    assert np.isnan(values[0]) and np.isfinite(values[rollout.active]).all()


def short_rollout():
    """One sequence of a single token, and one of eight whose last four are active."""
    from xcfg.identity.rollout import make_rollout
    from xcfg.schema.identity import CheckpointRef, SamplingRecord

    ids = np.arange(9) + 5
    active = np.arange(9) >= 5
    columns = {
        "token_ids": ids,
        "offsets": np.array([0, 1, 9]),
        "active_mask": active,
        "attention_mask": np.ones(9, dtype=bool),
        "position_ids": np.concatenate([[0], np.arange(8)]),
        "selected_token_ids": ids,
        "segment": active.astype(np.int8),
        "weight_version": np.zeros(9, dtype=np.int32),
    }
    return make_rollout(columns, checkpoint=CheckpointRef(uri="builtin:test"), sampling=SamplingRecord())

"""The runtime on CUDA devices: placement, both arms of the rollout, the read-only proof, and FSDP2 over NCCL."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from xcfg.identity.attest import expected_attestations
from xcfg.identity.rollout import write_rollout
from xcfg.schema.codec import decode_json, pretty_json
from xcfg.schema.names import Applied, EvidenceKind, Phase
from xcfg.schema.worker import BuildReport, ScoreReport, ScoreRequest

pytestmark = pytest.mark.gpu
CUDA = "cuda:0"
LAYOUTS = [{"batch.size": 3, "batch.padding_side": side} for side in ("left", "right")]
KERNELS = {"MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"}


def test_everything_lies_on_the_device_and_the_columns_do_not(built, uneven):
    engine = built("training", "bfloat16", device=CUDA)
    live = engine.adapter.engine
    tensors = [*live.model.parameters(), *live.model.buffers()]
    assert {str(item.device) for item in tensors} == {CUDA}
    assert engine.report.provenance["device"]["type"] == "cuda"
    assert engine.report.provenance["device"]["name"] == torch.cuda.get_device_name(CUDA)
    scored = engine.score(uneven)
    assert {item.device.type for item in scored.columns.values()} == {"cpu"}
    assert scored.report.attestations == expected_attestations(uneven)


def test_weights_and_fold_are_those_of_a_cpu(built):
    here, there = (built("training", "bfloat16", device=device).report.weights for device in (CUDA, "cpu"))
    assert here.tensors == there.tensors
    assert here.fold == there.fold


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_float64_is_that_of_a_cpu(built, uneven, attention):
    expected = built("reference", "float64", "eager").score(uneven).values
    for side, arm in (("reference", "reference"), ("rollout", "rollout_prefill"), ("rollout", "rollout_decode")):
        engine = built(side, "float64", attention, device=CUDA)
        for knobs in LAYOUTS:
            found = engine.score(uneven, arm, knobs)
            assert np.abs(found.values - expected).max() < 1e-11, (arm, knobs)
    packed = built("training", "float64", attention, device=CUDA)
    found = packed.score(uneven, knobs={"batch.size": 5, "batch.packing": True}).values
    assert np.abs(found - expected).max() < 1e-11


@pytest.mark.parametrize("arm", ["rollout_prefill", "rollout_decode"])
def test_float32_is_no_tf32(built, uneven, arm):
    """TF32 has 10 bits of mantissa: its error would be some thousand times that of a CPU."""
    exact = built("reference", "float64", "eager").score(uneven).values
    plain = np.abs(built("training", "float32", "eager").score(uneven).values - exact).max()
    error = np.abs(built("rollout", "float32", device=CUDA).score(uneven, arm).values - exact).max()
    assert 0 < error < 10 * plain


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_what_ran_is_named(built, uneven, attention):
    engine = built("rollout", "bfloat16", attention, device=CUDA)
    for arm in ("rollout_prefill", "rollout_decode"):
        scored = engine.score(uneven, arm)
        found = scored.applications["rollout.attention_backend"]
        assert (found.status, found.actual) == (Applied.APPLIED, attention)
        assert found.evidence[0].kind is EvidenceKind.EXECUTION
        kernels = set(scored.report.mechanism["attention_kernels"])
        assert kernels <= KERNELS
        assert bool(kernels) == (attention == "sdpa")
        assert scored.report.compute_dtype == "bfloat16"


def test_decode_is_decode_and_repeats_to_the_bit(built, uneven):
    engine = built("rollout", "bfloat16", device=CUDA)
    first, second = (engine.score(uneven, "rollout_decode") for _ in range(2))
    assert first.report.single_token_forwards == 10 + 8 + 6
    assert first.report.record.cache_mode == "dynamic key-value cache"
    phases = first.columns["phase"].numpy()[uneven.active]
    assert (phases == Phase.FIRST_TOKEN).sum() == 5
    assert (phases == Phase.DECODE).sum() == 41 - 5
    assert np.array_equal(first.values, second.values)


def test_sampling_then_replaying_gives_the_recorded_values(built, rollout_of):
    engine = built("rollout", "bfloat16", device=CUDA)
    prompts = [[5, 6, 7], [400, 3, 9, 11, 90], [17], [33, 44, 55, 66]]
    request = ScoreRequest(id="g", arm="recorded", generate={"max_new_tokens": 9, "seed": 3})
    sampled = engine.adapter.generate(request, prompts)
    ids = np.concatenate([prompt + item["token_ids"] for prompt, item in zip(prompts, sampled, strict=True)])
    tensors = {"token_ids": ids, "selected_token_ids": ids}
    rollout = rollout_of([len(prompt) for prompt in prompts], [9] * 4, tensors=tensors)
    recorded = np.concatenate([item["logprobs"] for item in sampled])
    assert np.array_equal(engine.score(rollout, "rollout_decode", {"batch.size": 8}).values, recorded)


def flip(engine) -> None:
    engine.model.model.layers[1].mlp.up_proj.weight.data.view(torch.int16)[3, 5] ^= 1


MUTATIONS = {"fold": flip, "rng": lambda engine: torch.rand(1, device=CUDA)}


@pytest.mark.parametrize("what", sorted(MUTATIONS))
def test_the_read_only_proof_catches_a_mutation(built, uneven, what):
    handle = built("training", "bfloat16", device=CUDA)
    clean = handle.score(uneven).report
    assert clean.state_unchanged
    assert clean.fold_before == clean.fold_after == handle.report.weights.fold
    engine = handle.adapter.engine
    original = engine.operator.function

    def mutating(logits, selected):
        MUTATIONS[what](engine)
        return original(logits, selected)

    engine.operator.function = mutating
    report = handle.score(uneven, knobs={"batch.size": 5}).report
    assert not report.state_unchanged
    assert report.mechanism["state_changes"] == [what]


@pytest.mark.parametrize("master", ["compute", "float32"])
def test_two_devices_over_nccl_give_the_bits_of_one(built, tiny, spec_of, launch, uneven, tmp_path, master):
    """Shards in bfloat16 and in float32: either way bfloat16 computes. Failing means a policy that moves numbers."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 CUDA devices")
    devices = ("cuda:0", "cuda:1")
    knobs = {
        "training.compute_dtype": "bfloat16",
        "training.attention_backend": "sdpa",
        "training.sharding": "fsdp",
        "training.fsdp_master_dtype": master,
    }
    spec = spec_of(tiny, "training", knobs, world_size=2, devices=devices)
    requests = [ScoreRequest(id=f"size-{size}", arm="training", knobs={"batch.size": size}) for size in (1, 2)]
    folder = tmp_path / "engine-plain"
    folder.mkdir()
    write_rollout(uneven, tmp_path / "rollout")
    (folder / "spec.json").write_bytes(pretty_json(spec))
    for request in requests:
        (folder / f"request-{request.id}.json").write_bytes(pretty_json(request))
    launch(tmp_path, 2)
    plain = built("training", "bfloat16", device=CUDA)
    builds = [decode_json((folder / f"build-{rank}.json").read_bytes(), BuildReport) for rank in (0, 1)]
    for rank, build in enumerate(builds):
        assert build.weights.tensors == plain.report.weights.tensors
        assert 0 < build.weights.local_parameters < build.weights.total_parameters
        found = {item.path: item for item in build.applications}
        sharding, stored = found["training.sharding"], found["training.fsdp_master_dtype"]
        assert (stored.status, stored.actual) == (Applied.APPLIED, master)
        assert (sharding.status, sharding.actual, sharding.rank) == (Applied.APPLIED, "fsdp", rank)
        assert {item.kind for item in sharding.evidence} == {EvidenceKind.STATE, EvidenceKind.EXECUTION}
    for request in requests:
        merged = np.full(len(uneven.token_ids), np.nan)
        for rank in (0, 1):
            report = decode_json((folder / f"report-{request.id}-{rank}.json").read_bytes(), ScoreReport)
            columns = load_file(folder / f"columns-{request.id}-{rank}.safetensors")
            assert report.state_unchanged
            assert report.counters["all_gathers"] >= 4 * report.forwards
            for start, stop in report.record.ranges:
                merged[start:stop] = columns["selected_logprob"][start:stop]
        expected = plain.score(uneven, knobs=request.knobs).values
        assert np.array_equal(merged[uneven.active], expected), request.id

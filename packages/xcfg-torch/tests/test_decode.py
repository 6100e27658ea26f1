"""Forced replay is real token-by-token decode, and its controls behave as the contract says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from xcfg.errors import XcfgError
from xcfg.identity.attest import expected_attestations
from xcfg.schema.identity import SamplingRecord
from xcfg.schema.names import Phase
from xcfg.schema.worker import ScoreRequest

KNOBS = {"batch.size": 2, "batch.padding_side": "left"}


def test_counts_single_token_forwards(built, uneven):
    """Batches [5+11, 9+6], [3+9, 12+8], [7+7] need 10 + 8 + 6 steps after their prompts."""
    scored = built("rollout").score(uneven, "rollout_decode", KNOBS)
    assert scored.report.single_token_forwards == 10 + 8 + 6
    assert scored.report.forwards == 3 + 24
    assert scored.report.record.cache_mode == "dynamic key-value cache"


def test_prefill_has_no_single_token_forward(built, uneven):
    scored = built("rollout").score(uneven, "rollout_prefill", KNOBS)
    assert (scored.report.forwards, scored.report.single_token_forwards) == (3, 0)
    assert scored.report.record.cache_mode == "none"


def test_first_token_is_tagged_and_step_batches_shrink(built, uneven):
    columns = built("rollout").score(uneven, "rollout_decode", KNOBS).columns
    for sequence in range(uneven.sequence_count):
        span = uneven.span(sequence)
        phases = columns["phase"].numpy()[span][uneven.active[span]]
        assert phases[0] == Phase.FIRST_TOKEN and set(phases[1:]) == {Phase.DECODE}
        assert not columns["phase"].numpy()[span][~uneven.active[span]].any()
    # Sequence 0 has 11 response tokens, its neighbour 6: from the seventh on it decodes alone of 2 rows.
    span = uneven.span(0)
    real = columns["step_batch"].numpy()[span][uneven.active[span]]
    padded = columns["step_batch_padded"].numpy()[span][uneven.active[span]]
    assert real.tolist() == [2] * 6 + [1] * 5 and set(padded) == {2}


def test_bf16_decode_differs_from_prefill_and_float32_hardly(built, uneven):
    gaps = {}
    for dtype in ("bfloat16", "float32"):
        engine = built("rollout", dtype)
        gap = engine.score(uneven, "rollout_decode").values - engine.score(uneven, "rollout_prefill").values
        gaps[dtype] = np.abs(gap).max()
    reference = built("reference", "float64", "eager").score(uneven).values
    error = np.abs(built("training", "float32").score(uneven).values - reference).max()
    assert gaps["bfloat16"] > 1e-4
    assert 0 < gaps["float32"] < 6 * error


def test_eager_and_sdpa_decode_agree_in_float64(built, uneven):
    """No experiment asks a rollout for float64; here it leaves a wrong cache or mask nothing to hide in."""
    reference = built("reference", "float64", "eager").score(uneven).values
    for attention in ("eager", "sdpa"):
        engine = built("rollout", "float64", attention)
        for side in ("left", "right"):
            knobs = {"batch.size": 3, "batch.padding_side": side}
            decoded = engine.score(uneven, "rollout_decode", knobs).values
            assert np.abs(decoded - reference).max() < 1e-12, (attention, side)


def test_attests_all_but_the_last_token(built, uneven):
    report = built("rollout").score(uneven, "rollout_decode", KNOBS).report
    assert report.attestations == expected_attestations(uneven, consumed_last=False)


def test_several_segments_are_replayed_through_the_observation(built, rollout_of):
    """prompt, generated, observation (inactive), generated: the second segment is decoded too."""
    rollout = rollout_of([4, 6], [12, 8])
    active = rollout.active.copy()
    active[8:11] = False
    rollout = rollout_of([4, 6], [12, 8], tensors={"active_mask": active})
    scored = built("rollout", "float64").score(rollout, "rollout_decode", KNOBS)
    reference = built("reference", "float64", "eager").score(rollout)
    assert np.abs(scored.values - reference.values).max() < 1e-12
    assert torch.isnan(scored.columns["selected_logprob"][8:11]).all()
    assert scored.report.attestations == expected_attestations(rollout, consumed_last=False)


def test_a_sequence_without_active_tokens_is_only_prefilled(built, rollout_of):
    rollout = rollout_of([4, 6], [5, 8])
    active = rollout.active.copy()
    active[:9] = False
    rollout = rollout_of([4, 6], [5, 8], tensors={"active_mask": active})
    scored = built("rollout").score(rollout, "rollout_decode", KNOBS)
    assert np.isfinite(scored.values).all() and len(scored.values) == 8
    assert scored.report.single_token_forwards == 7


def test_logical_positions_and_hidden_tokens_enter_decode(built, rollout_of):
    base = rollout_of([5, 5], [6, 4])
    positions = base.tensors["position_ids"].astype(np.int64) + 3
    hidden = np.ones(len(positions), dtype=bool)
    hidden[1] = False
    rollout = rollout_of([5, 5], [6, 4], tensors={"position_ids": positions, "attention_mask": hidden})
    scored = built("rollout", "float64").score(rollout, "rollout_decode", KNOBS)
    reference = built("reference", "float64", "eager").score(rollout)
    plain = built("reference", "float64", "eager").score(base)
    assert np.abs(scored.values - reference.values).max() < 1e-12
    assert np.abs(reference.values[:6] - plain.values[:6]).max() > 1e-6, "hiding a token must change what follows"
    assert scored.report.attestations == expected_attestations(rollout, consumed_last=False)


def test_zeroed_page_moves_later_decode_tokens_and_no_prefill_value(built, uneven):
    engine = built("rollout", "float32")
    # Padded right, so that the first columns hold a token in every row.
    knobs = {"batch.size": 2, "batch.padding_side": "right"}
    before = {arm: engine.score(uneven, arm, knobs).columns for arm in ("rollout_decode", "rollout_prefill")}
    damaged_at = 4

    def zero_page(step, cache):
        if step == damaged_at:
            for layer in cache.layers:
                layer.keys[:, :, :2] = 0
                layer.values[:, :, :2] = 0

    engine.adapter.intervene = zero_page
    after = {arm: engine.score(uneven, arm, knobs) for arm in ("rollout_decode", "rollout_prefill")}
    assert after["rollout_decode"].report.mechanism["intervention"] is True
    pairs = {arm: (before[arm]["selected_logprob"], after[arm].columns["selected_logprob"]) for arm in before}
    assert torch.equal(*(values.nan_to_num() for values in pairs["rollout_prefill"]))
    for sequence in range(uneven.sequence_count):
        where = np.flatnonzero(uneven.active[uneven.span(sequence)]) + uneven.span(sequence).start
        whole, damaged = pairs["rollout_decode"]
        moved = (whole[where] != damaged[where]).numpy()
        # Token n is predicted by step n - 1, so the first damaged value is that of token damaged_at + 1.
        assert not moved[: damaged_at + 1].any()
        assert moved[damaged_at + 1 :].all()


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_sampling_then_replaying_gives_the_recorded_values(built, rollout_of, mode):
    engine = built("rollout", "bfloat16")
    prompts = [[5, 6, 7], [400, 3, 9, 11, 90], [17], [33, 44, 55, 66]]
    generate = {
        "max_new_tokens": 9,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 50,
        "seed": 3,
        "logprobs_mode": mode,
    }
    request = ScoreRequest(id="g", arm="recorded", knobs=KNOBS, generate={"prompts": prompts, **generate})
    sampled = engine.adapter.generate(request, prompts)
    again = engine.adapter.generate(request, [{"token_ids": prompt} for prompt in prompts])
    assert sampled == again, "the same seed samples the same tokens"
    chain = ("temperature:0.8", "top_k:50", "top_p:0.9")
    sampling = SamplingRecord(
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        logprobs_mode=mode,
        transform_chain=tuple(sampled[0]["transforms"]),
    )
    ids = np.concatenate([prompt + item["token_ids"] for prompt, item in zip(prompts, sampled, strict=True)])
    lengths = [len(prompt) for prompt in prompts]
    tensors = {"token_ids": ids, "selected_token_ids": ids}
    rollout = rollout_of(lengths, [9] * 4, tensors=tensors, sampling=sampling)
    replayed = engine.score(rollout, "rollout_decode", KNOBS)
    recorded = np.concatenate([item["logprobs"] for item in sampled])
    assert np.array_equal(replayed.values, recorded)
    assert sampling.transform_chain == (chain if mode == "processed_logprobs" else ())
    assert replayed.report.transforms == sampling.transform_chain
    assert np.isfinite(recorded).all() and len(set(recorded)) > 10


@pytest.mark.parametrize("named", [{}, {"batch.size": 8}, {"batch.padding_side": "right"}, {"batch.packing": False}])
def test_what_is_frozen_without_layout_knobs_is_replayed_with_or_without_them(built, rollout_of, named):
    """One default for sampling and scoring, that of the shared knobs: prompts of unequal lengths lie in one batch."""
    engine = built("rollout", "bfloat16")
    prompts = [[5, 6, 7], [400, 3, 9, 11, 90], [17], [33, 44, 55, 66]]
    request = ScoreRequest(id="g", arm="recorded", generate={"max_new_tokens": 9, "seed": 3})
    sampled = engine.adapter.generate(request, prompts)
    ids = np.concatenate([prompt + item["token_ids"] for prompt, item in zip(prompts, sampled, strict=True)])
    tensors = {"token_ids": ids, "selected_token_ids": ids}
    rollout = rollout_of([len(prompt) for prompt in prompts], [9] * 4, tensors=tensors)
    recorded = np.concatenate([item["logprobs"] for item in sampled])
    arm = ScoreRequest(id="r", arm="rollout_decode", knobs=named)
    columns = engine.adapter.score(arm, rollout)[1]
    assert np.array_equal(columns["selected_logprob"][columns["active"]].double().numpy(), recorded)


def test_a_stop_id_ends_a_sequence_and_is_kept(built):
    engine = built("rollout", "float32")
    prompts = [[5, 6, 7], [8, 9]]
    free = {"max_new_tokens": 8, "seed": 1}
    request = ScoreRequest(id="g", arm="recorded", knobs=KNOBS, generate=free)
    first = engine.adapter.generate(request, prompts)
    stop = first[0]["token_ids"][3]
    request = ScoreRequest(id="g", arm="recorded", knobs=KNOBS, generate={**free, "stop_ids": [stop]})
    second = engine.adapter.generate(request, prompts)
    assert second[0]["token_ids"] == first[0]["token_ids"][:4]
    assert second[0]["finish_reason"] == "stop"
    last = next((at for at, token in enumerate(first[1]["token_ids"]) if token == stop), 7)
    assert second[1]["token_ids"] == first[1]["token_ids"][: last + 1], "another sequence is not cut with it"


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_k": -1}, {"max_new_tokens": 0}, {"topp": 1}]
)
def test_a_wrong_generate_request_is_refused(built, wrong):
    request = ScoreRequest(id="g", arm="recorded", generate={"max_new_tokens": 2, **wrong})
    with pytest.raises(XcfgError, match=next(iter(wrong))):
        built("rollout").adapter.generate(request, [[1, 2]])


def test_shuffled_groups_change_batches_and_no_logical_token(built, uneven):
    engine = built("rollout", "float64")
    plain = engine.score(uneven, "rollout_decode", KNOBS)
    mixed = engine.score(uneven, "rollout_decode", KNOBS, shuffle_seed=4)
    assert mixed.report.attestations == plain.report.attestations
    assert mixed.report.timeline != plain.report.timeline
    assert np.abs(mixed.values - plain.values).max() < 1e-12


def test_text_needs_a_tokenizer(built):
    request = ScoreRequest(id="g", arm="recorded", generate={"max_new_tokens": 2})
    with pytest.raises(XcfgError, match="no tokenizer"):
        built("rollout").adapter.generate(request, [{"text": "Once upon a time"}])

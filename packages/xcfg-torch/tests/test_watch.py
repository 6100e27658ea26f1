"""Observing in samples: what is looked at, what is counted every time, and what an error leaves behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from xcfg.schema.names import Applied
from xcfg_torch.attention import Sampler

LAYERS = 4
KNOBS = {"batch.size": 2, "batch.padding_side": "left"}


def attention(scored, side="rollout"):
    return scored.applications[f"{side}.attention_backend"]


def hooks(model) -> int:
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())


def test_a_sampler_takes_the_powers_of_four_of_every_kind():
    sampler = Sampler()
    assert [turn for turn in range(1, 1100) if sampler.take(("a",))] == [1, 4, 16, 64, 256, 1024]
    assert sampler.take(("b",))
    sampler.clear()
    assert sampler.take(("a",))


def test_every_call_is_counted_and_samples_are_watched(built, uneven):
    """3 prompts and 10 + 8 + 6 steps, see test_decode. The last batch is one sequence, unpadded, and gets no mask."""
    scored = built("rollout").score(uneven, "rollout_decode", KNOBS)
    counters = scored.report.counters
    assert counters["attention.modules"] == LAYERS * 27
    # With a mask: prompt 1 and steps 1, 4, 16 (of 18); without: the prompt and steps 1, 4 (of 6).
    assert counters["attention.watched"] == counters["attention.sdpa"] == LAYERS * (1 + 3 + 1 + 2)
    assert scored.report.mechanism["attention_masks"] == {"4d": LAYERS * 20, "none": LAYERS * 7}
    detail = attention(scored).evidence[0].detail
    assert f"sdpa in 4 of 4 layers; {LAYERS * 7} of {LAYERS * 27} calls" in detail
    mechanism = scored.report.mechanism
    # Prompt 1 and steps 1, 4, 16 of 24; seven Linear modules in each of four blocks.
    assert mechanism["sampled_forwards"] == 4
    assert mechanism["matmul_inputs"] == {"float32": 4 * LAYERS * 7}


def test_each_score_is_watched_anew(built, uneven):
    engine = built("rollout")
    first, second = (engine.score(uneven, "rollout_decode", KNOBS).report.counters for _ in range(2))
    assert first == second
    assert first["attention.watched"] > 0


def test_most_calls_run_outside_any_mode(built, uneven):
    engine = built("rollout")
    depths = []
    original = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def recording(*arguments, **named):
        depths.append(len(_get_current_function_mode_stack()))
        return original(*arguments, **named)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = recording
    try:
        counters = engine.score(uneven, "rollout_decode", KNOBS).report.counters
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = original
    assert len(depths) == counters["attention.modules"]
    assert depths.count(1) == counters["attention.watched"] < len(depths) / 2
    assert set(depths) == {0, 1}


@pytest.mark.parametrize(("step", "seen"), [(0, True), (5, True), (12, True), (22, False)])
def test_a_kernel_that_changes_with_the_context_is_seen(built, uneven, step, seen):
    """Watched are steps 1, 4, 16 and, without a mask, 19 and 22: what changes in the last two stays unseen."""
    engine = built("rollout")
    observer = engine.adapter.engine.observer
    original = ALL_ATTENTION_FUNCTIONS["sdpa"]
    other = []

    def switching(module, query, key, value, mask, scaling=None, **named):
        if query.shape[-2] > 1 or observer.single_token_forwards <= step:
            return original(module, query, key, value, mask, scaling=scaling, **named)
        other.append(observer.single_token_forwards)
        groups = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        scores = query @ key.transpose(-1, -2) * scaling
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS["sdpa"] = switching
    try:
        scored = engine.score(uneven, "rollout_decode", KNOBS)
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = original
    assert sorted(set(other)) == list(range(step + 1, 25)), "another kernel ran in every step after it"
    assert attention(scored).status is (Applied.FALLBACK if seen else Applied.APPLIED)


def test_one_matmul_in_another_dtype_is_seen_in_decode(built, uneven):
    engine = built("rollout", "float32")
    block = engine.adapter.engine.parts.blocks[2]
    block.mlp.down_proj.bfloat16()
    block.mlp.down_proj.register_forward_pre_hook(lambda module, args: (args[0].bfloat16(),))
    block.mlp.down_proj.register_forward_hook(lambda module, args, output: output.float())
    scored = engine.score(uneven, "rollout_decode", KNOBS)
    assert scored.report.compute_dtype == "bfloat16"
    assert scored.applications["rollout.dtype"].status is Applied.FALLBACK


def test_an_error_inside_attention_leaves_no_mode_and_no_hook(built, uneven):
    engine = built("rollout")
    model = engine.adapter.engine.model
    before, plain = hooks(model), engine.score(uneven, "rollout_decode", KNOBS)
    original = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def failing(*arguments, **named):
        raise RuntimeError("no kernel")

    ALL_ATTENTION_FUNCTIONS["sdpa"] = failing
    try:
        with pytest.raises(RuntimeError, match="no kernel"):
            engine.score(uneven, "rollout_decode", KNOBS)
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = original
    assert not _get_current_function_mode_stack()
    assert hooks(model) == before
    again = engine.score(uneven, "rollout_decode", KNOBS)
    assert np.array_equal(again.values, plain.values)
    assert again.report.counters == plain.report.counters


def test_close_removes_every_hook(built):
    engine = built("rollout")
    model = engine.adapter.engine.model
    assert hooks(model) > 0
    engine.adapter.close()
    assert hooks(model) == 0

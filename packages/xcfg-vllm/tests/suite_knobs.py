"""Engine arguments on real engines, one built after the other: what they do to the numbers, what is said of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from xcfg.identity.attest import expected_attestations, weight_digest
from xcfg.schema.names import Applied
from xcfg.schema.worker import ScoreRequest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]


def score(engine, rollout, arm="rollout_decode"):
    """(report, values) of one score."""
    report, columns = engine.adapter.score(ScoreRequest(id=arm, arm=arm), rollout)
    return report, columns["selected_logprob"].numpy()


def found(report, path):
    return next(item for item in report.applications if item.path == path)


def test_a_temperature_reaches_processed_values_and_is_told(live, checkpoint, rollout, formula, tmp_path):
    """Failing means that a temperature on one side could pass for drift."""
    changed = {"rollout__logprobs_mode": "processed_logprobs", "rollout__temperature": 0.7}
    with live(checkpoint, rollout, tmp_path, **changed) as engine:
        report, values = score(engine, rollout)
        assert np.nanmax(np.abs(values - formula(checkpoint, rollout, 0.7))) < 3e-5
        assert report.transforms == ("temperature:0.7",)
        assert "overwriting" in report.mechanism["scorer"], "a processor would leave a processed probability of 1"
        for path in ("rollout.logprobs_mode", "rollout.temperature"):
            assert found(report, path).status is Applied.APPLIED and found(report, path).exercised.value == "yes"
        prompt, raw = score(engine, rollout, "rollout_prefill")
        assert prompt.transforms == () and np.nanmax(np.abs(raw - formula(checkpoint, rollout))) < 2e-5


def memory_of(*names):
    """Bytes of this process by their names in /proc/self/status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(lines[name].split()[0]) << 10 for name in names]


def test_prompts_over_a_wide_vocabulary_take_what_was_estimated(live, wide, formula, tmp_path):
    """Two sequences in one step, 32,768 columns. Failing means that an engine is started which cannot finish a score.

    Its requests have a temperature, which must not reach raw values.
    """
    checkpoint, rollout = wide
    with live(checkpoint, rollout, tmp_path, rollout__temperature=0.7) as engine:
        report, values = score(engine, rollout)
        assert np.nanmax(np.abs(values - formula(checkpoint, rollout))) < 2e-5 and report.transforms == ()
        assert found(report, "rollout.temperature").exercised.value == "no"
        estimate = engine.built.provenance["facts"]["memory"]["prompt_logprobs"]
        assert estimate == 32768 * (799 * (4 + 4) + 599 * 4)
        score(engine, rollout, "rollout_prefill")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        (before,) = memory_of("VmRSS")
        report, _ = score(engine, rollout, "rollout_prefill")
        (peak,) = memory_of("VmHWM")
        assert report.counters["max_requests"] == 2, "both prompts ran in one step"
        assert 0.95 * estimate < peak - before < 1.05 * estimate, ((peak - before) / estimate, estimate)


def test_reloaded_weights_are_the_checkpoint_s(live, checkpoint, rollout, oracle, tmp_path):
    """Failing means that an engine of random weights could pass, or that a reload that did nothing could."""
    with live(checkpoint, rollout, tmp_path, weights__path="reload") as engine:
        stored = load_file(checkpoint / "model.safetensors")
        tensors = engine.built.weights.tensors
        assert tensors == {name: weight_digest(tensor.float()) for name, tensor in stored.items()}
        report, values = score(engine, rollout)
        assert np.nanmax(np.abs(values - oracle)) < 2e-5
        item = found(report, "weights.path")
        assert item.status is Applied.APPLIED and "negated" in item.evidence[0].detail


def test_what_a_prefix_cache_brings_is_attested_by_who_filled_it(live, checkpoint, shared_prompt, formula, tmp_path):
    """Failing means that tokens which never entered the model count as read, or cached ones as unread."""
    changed = {"rollout__enable_prefix_caching": True, "rollout__block_size": 32, "batch__size": 1}
    with live(checkpoint, shared_prompt, tmp_path, **changed) as engine:
        report, values = score(engine, shared_prompt)
        assert report.counters["cached_tokens"] == 2 * 64, "two whole blocks for the second and the third sample"
        assert report.attestations == expected_attestations(shared_prompt, consumed_last=False)
        item = found(report, "rollout.enable_prefix_caching")
        assert (item.status, item.actual, item.exercised.value) == (Applied.APPLIED, True, "yes")
        assert np.nanmax(np.abs(values - formula(checkpoint, shared_prompt))) < 2e-5
        again, _ = score(engine, shared_prompt)
        assert again.counters["cached_tokens"] == 2 * 64, "a score begins with an empty cache"
        prompt, _ = score(engine, shared_prompt, "rollout_prefill")
        item = found(prompt, "rollout.enable_prefix_caching")
        assert prompt.counters["cached_tokens"] == 0 and item.exercised.value == "no", "vLLM scores prompts without it"


def test_a_warm_cache_is_filled_by_the_same_score_and_a_cold_one_is_empty(
    live, checkpoint, shared_prompt, formula, tmp_path
):
    """Failing means that a control of the cache scores what the baseline scored, or tokens that nobody read."""
    changed = {"rollout__enable_prefix_caching": True, "rollout__block_size": 32, "batch__size": 1}
    with live(checkpoint, shared_prompt, tmp_path, **changed) as engine:
        seen = {}
        for control, brought in (("warm", 3 * 64), ("cold", 2 * 64), ("warm", 3 * 64)):
            asked = ScoreRequest(id=f"{control}-{len(seen)}", arm="rollout_decode", cache=control)
            report, columns = engine.adapter.score(asked, shared_prompt)
            assert report.mechanism["cache"] == {"control": control, "brought_tokens": brought}
            assert report.counters["cached_tokens"] == brought, "two blocks each; cold, the first sample fills them"
            assert report.attestations == expected_attestations(shared_prompt, consumed_last=False)
            seen[control] = columns["selected_logprob"].numpy()
            assert np.nanmax(np.abs(seen[control] - formula(checkpoint, shared_prompt))) < 2e-5
            names = [span["name"] for span in report.timeline]
            assert names.count("fill the cache") == (3 if control == "warm" else 0) and names.count("replay") == 3


def test_cached_prompt_log_probabilities_are_no_numbers(live, checkpoint, shared_prompt, formula, tmp_path):
    """Failing means that what vLLM leaves in memory for cached prompt tokens could enter a comparison."""
    changed = {"rollout__enable_prefix_caching": True, "rollout__block_size": 32, "batch__size": 1}
    options = {"prompts_read_cache": True}
    with live(checkpoint, shared_prompt, tmp_path, options=options, **changed) as engine:
        score(engine, shared_prompt, "rollout_prefill")
        report, columns = engine.adapter.score(ScoreRequest(id="x", arm="rollout_prefill"), shared_prompt)
        assert report.counters["cached_tokens"] >= 2 * 64
        values, exact = columns["selected_logprob"].numpy(), formula(checkpoint, shared_prompt)
        scored = ~np.isnan(values)
        unscored = [np.isnan(values[shared_prompt.span(item)]).sum() for item in range(3)]
        assert unscored == [70, 70, 70], "64 cached tokens, and the rest of the prompt, which is not active"
        assert scored.any() and np.abs(values[scored] - exact[scored]).max() < 2e-5
        assert not (values[shared_prompt.active] == 0.0).any()


def test_a_compiled_engine_is_read_back(live, checkpoint, rollout, oracle, tmp_path):
    """Failing means that torch.compile hides what ran, or that the engine ran eagerly all the same."""
    with live(checkpoint, rollout, tmp_path, rollout__enforce_eager=False) as engine:
        for arm in ("rollout_prefill", "rollout_decode"):
            report, values = score(engine, rollout, arm)
            assert np.nanmax(np.abs(values - oracle)) < 2e-5
            assert found(report, "rollout.enforce_eager").actual is False
            assert found(report, "rollout.custom_ops").actual == "none", "a compiler turns them off, asked or not"
            assert {item.status for item in report.applications} == {Applied.APPLIED}
            assert report.compute_dtype == "float32"

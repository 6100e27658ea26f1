"""Operators put into a real vLLM engine on a CPU: every layer swapped at once, the numbers against float64."""

from __future__ import annotations

import numpy as np
import pytest
from xcfg.plugin.readback import is_operator, operator_path
from xcfg.schema.names import Applied, EvidenceKind
from xcfg.schema.worker import ScoreRequest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
ARMS = ("rollout_prefill", "rollout_decode")
OPERATORS = {
    "selected_logprob": ("xcfg.reference_logp", "xcfg_ops_logp.reference:build"),
    "norm": ("torch.rms_norm_float32", "xcfg_ops_gemm.norm:float32"),
    "activation": ("torch.swiglu_float32", "xcfg_ops_gemm.activation:float32"),
    "rotary": ("torch.rotary_float32", "xcfg_ops_attention.rotary:float32"),
    "attention": ("torch.attention_float32", "xcfg_ops_attention.attention:float32"),
}


@pytest.fixture(scope="module")
def swapped(live, checkpoint, rollout, tmp_path_factory):
    """An engine in which none of its own operators is left."""
    with live(checkpoint, rollout, tmp_path_factory.mktemp("swapped"), operators=OPERATORS) as found:
        yield found


@pytest.fixture(scope="module")
def scored(swapped, rollout):
    return {arm: swapped.adapter.score(ScoreRequest(id=arm, arm=arm), rollout) for arm in ARMS}


@pytest.mark.parametrize("arm", ARMS)
def test_the_numbers_are_still_those_of_the_model(scored, oracle, arm):
    """Failing means that an operator was handed other tensors than its contract says."""
    values = scored[arm][1]["selected_logprob"].numpy()
    assert np.nanmax(np.abs(values - oracle)) < 2e-5


@pytest.mark.parametrize("operation", OPERATORS)
@pytest.mark.parametrize("arm", ARMS)
def test_each_is_applied_by_calls_and_by_live_types(scored, arm, operation):
    """Failing means that an operator which ran is not shown to have run."""
    found = {item.path: item for item in scored[arm][0].applications}[operator_path(operation)]
    assert found.status is Applied.APPLIED and found.actual == OPERATORS[operation][0], found
    calls, types = found.evidence
    assert calls.kind is EvidenceKind.EXECUTION and int(calls.detail) > 0
    assert types.kind is EvidenceKind.STATE and "xcfg_vllm.inject." in types.detail


def test_the_model_s_own_attention_is_not_what_runs(scored):
    """Failing means that two settings of the same thing count as applied, of which one runs."""
    for report, _ in scored.values():
        item = {item.path: item for item in report.applications}["rollout.attention_backend"]
        assert (item.status, item.actual) == (Applied.FALLBACK, OPERATORS["attention"][0]), item


def test_counters_are_those_of_the_score(scored, swapped, rollout):
    """Failing means that calls of an earlier score pass for those of this one. Layers: 2; norms: 4 a layer, 1 more."""
    report = scored["rollout_prefill"][0]
    forwards = report.forwards
    assert report.counters["operator.norm"] == forwards * (2 * 4 + 1)
    assert report.counters["operator.activation"] == forwards * 2
    assert report.counters["operator.rotary"] == forwards * 2
    again = swapped.adapter.score(ScoreRequest(id="again", arm="rollout_prefill"), rollout)[0]
    assert again.counters == report.counters


def test_an_operator_that_is_in_place_and_never_called_is_not_applied(swapped, rollout, monkeypatch):
    """Failing means that a registered operator passes for one that ran."""
    from xcfg_vllm.inject import registry

    rotary = registry.ACTIVE["rotary"]
    monkeypatch.setattr(type(rotary), "__call__", lambda self, *items, **named: self.function(*items, **named))
    report, _ = swapped.adapter.score(ScoreRequest(id="quiet", arm="rollout_prefill"), rollout)
    status = {item.path: item for item in report.applications}
    assert status["operators.rotary"].status is Applied.UNOBSERVABLE
    assert "never called" in status["operators.rotary"].reason


def test_a_plugin_that_is_absent_leaves_nothing_applied(swapped, rollout, monkeypatch):
    """Failing means that VLLM_PLUGINS, which silently drops xcfg's plugin, goes unseen. Seen from the facts alone."""
    from xcfg_vllm.knobs import Window, applications

    facts = swapped.adapter.engine.every_rank("xcfg_facts")[0]
    stock = {
        **facts,
        "operators": {},
        "plugins": "other",
        "logprob_functions": [
            "vllm.v1.sample.sampler.Sampler.compute_logprobs",
            "vllm.v1.sample.sampler.Sampler.gather_logprobs",
        ],
        "logprob_sources": ["vllm/v1/sample/sampler.py"],
        "layers": {name: {f"vllm.{name}": 4} for name in OPERATORS},
        "probe_cached": 0,
    }
    window = Window(0, stock, {}, swapped.adapter.engine.arguments, swapped.spec.operators)
    found = [item for item in applications(window, {"logp.backend": "native"}) if is_operator(item.path)]
    assert len(found) == len(OPERATORS)
    for item in found:
        assert item.status is Applied.UNOBSERVABLE and "VLLM_PLUGINS is 'other'" in item.reason, item

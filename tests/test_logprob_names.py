"""The names by which engines' log probabilities are recorded (`logprob.impl`) each stand for exactly one backend."""

from __future__ import annotations

import pytest
from xcfg.plugin.manager import PluginManager

NAMES = {
    "mcore_unfused": "megatron.cross_entropy_unfused",
    "mcore_native_fused": "megatron.cross_entropy_fused",
    "mcore_te_fused": "megatron.cross_entropy_te",
    "slime_vocab_parallel": "xcfg.slime_vocab_parallel_logp",
    "vllm_all_gather": "vllm.sampler_logprobs",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_name_is_one_backend(name):
    """If this fails, what was recorded of a run names nothing that can be run again, or two things."""
    records = [item.record for item in PluginManager.load(environ={}).operator_backends()]
    found = [item.backend_id for item in records if name in (item.backend_id, *item.aliases)]
    assert found == [NAMES[name]]

"""The package registers a runtime, knobs and a backend, and imports nothing heavy to do so."""

from __future__ import annotations

import subprocess
import sys

import pytest
from xcfg.errors import ConfigError
from xcfg.plugin.manager import PluginManager
from xcfg.schema.runtime import PlacementRequest
from xcfg_testkit import PluginContract
from xcfg_vllm.build import _short
from xcfg_vllm.placement import placement

HEAVY = ("torch", "numpy", "safetensors", "transformers", "vllm", "megatron")


class TestPlugin(PluginContract):
    module = "xcfg_vllm.plugin"
    entry_point = "vllm"


def test_it_is_active_and_offers_what_it_says():
    entry = PluginManager.load(environ={}).plugin("vllm")
    assert (entry.distribution, entry.status) == ("xcfg-vllm", "active"), entry.reason
    assert list(entry.provides["runtimes"]) == ["vllm"]


def test_the_module_imports_nothing_heavy():
    found = "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys, xcfg_vllm.plugin, xcfg_vllm.placement; print(sorted({found} & set({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def asked(knobs=None, options=None, devices=("cpu",)):
    return placement(PlacementRequest(side="rollout", knobs=knobs or {}, options=options or {}, devices=devices))


def test_one_process_hosts_every_rank():
    found = asked({"rollout.tensor_parallel_size": 2})
    assert (found.world_size, found.processes, found.devices) == (2, 1, ("cpu", "cpu"))
    assert found.env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1" != asked().env["VLLM_ENABLE_V1_MULTIPROCESSING"]


def test_what_the_engine_would_refuse_is_said_before_it_starts():
    assert "multiples of 32" in asked({"rollout.block_size": 16}).unsupported["rollout.block_size"]
    assert asked({"rollout.block_size": 64}).unsupported == {}
    few = asked({"rollout.tensor_parallel_size": 2}, devices=("cuda:0",))
    assert "need 2 devices" in few.unsupported["rollout.tensor_parallel_size"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_model_length": 5}, "there is no option 'max_model_length'"),
        ({"kv_cache_gib": 0}, "not a positive number"),
        ({"kv_cache_gib": "1"}, "kv_cache_gib"),
        ({"gpu_memory_utilization": 1.5}, "no share"),
        ({"environment": {"PATH": "/"}}, "'PATH' cannot be set here"),
        ({"environment": {"VLLM_API_KEY": "x"}}, "kept with its evidence"),
        ({"environment": {"CUDA_INJECTION64_PATH": "/tmp/a.so"}}, "code or folders"),
        ({"environment": {"NCCL_NET_PLUGIN": "/tmp/a.so"}}, "code or folders"),
        ({"environment": {"VLLM_LOGGING_CONFIG_PATH": "a.json"}}, "code or folders"),
        ({"environment": {"VLLM_A=B": "x"}}, "cannot be set here"),
        ({"environment": {"VLLM_A": "a\0b"}}, "cannot be set here"),
        ({"environment": {"VLLM_BATCH_INVARIANT": "1"}}, "follow from knobs"),
        ({"environment": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}, "follow from knobs"),
        ({"enable_sleep_mode": True}, "there is no option 'enable_sleep_mode'"),
        ({"skip_reading_prefix_cache": False}, "there is no option 'skip_reading_prefix_cache'"),
        ({"attention_backend": "TRITON_ATTN"}, "there is no option 'attention_backend'"),
        ({"compilation_config": {"custom_ops": ["none"]}}, "there is no option 'compilation_config'"),
    ],
)
def test_a_wrong_option_is_named(options, says):
    """Failing means that an argument of vLLM which it ignores, or which a knob reads back, comes in unseen."""
    with pytest.raises(ConfigError) as error:
        asked(options=options)
    assert says in str(error.value)


def test_why_a_configuration_is_refused_stands_in_the_message():
    """pydantic says on the first line that something is wrong and on the second what; a reason is one line."""
    refused = ValueError(
        "1 validation error for VllmConfig\n  Value error, Model Runner V2 requires Triton.\n" + "x" * 999
    )
    told = _short(refused)
    assert told.startswith(
        "ValueError: 1 validation error for VllmConfig Value error, Model Runner V2 requires Triton."
    )
    assert "\n" not in told and len(told) < 320

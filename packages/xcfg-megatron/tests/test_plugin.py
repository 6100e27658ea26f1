"""The package registers a runtime, knobs and a backend, and imports nothing heavy to do so."""

from __future__ import annotations

import subprocess
import sys

import pytest
from xcfg.errors import ConfigError
from xcfg.plugin.manager import PluginManager
from xcfg.schema.runtime import PlacementRequest
from xcfg_megatron.placement import placement
from xcfg_testkit import PluginContract

HEAVY = ("torch", "numpy", "safetensors", "transformers", "vllm", "megatron")


class TestPlugin(PluginContract):
    module = "xcfg_megatron.plugin"
    entry_point = "megatron"


def test_it_is_active_and_offers_what_it_says():
    entry = PluginManager.load(environ={}).plugin("megatron")
    assert (entry.distribution, entry.status) == ("xcfg-megatron", "active"), entry.reason
    assert list(entry.provides["runtimes"]) == ["megatron"]


def test_the_module_imports_nothing_heavy():
    found = "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys, xcfg_megatron.plugin, xcfg_megatron.placement; print(sorted({found} & set({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def asked(knobs=None, options=None, devices=("cpu",)):
    return placement(PlacementRequest(side="training", knobs=knobs or {}, options=options or {}, devices=devices))


def test_one_process_for_every_rank():
    found = asked({"training.tensor_parallel_size": 2})
    assert (found.world_size, found.processes, found.devices) == (2, 2, ("cpu", "cpu"))


def test_ranks_of_both_dimensions_are_started():
    """If this fails, a split context runs on too few ranks, and the engine waits for the others."""
    found = asked({"training.tensor_parallel_size": 2, "training.context_parallel_size": 3})
    assert (found.world_size, found.processes, found.devices) == (6, 6, ("cpu",) * 6)


def test_transformer_engine_is_refused_where_it_is_not_installed(monkeypatch):
    """If this fails, a case that needs Transformer Engine fails in the middle of a build instead of before it."""
    monkeypatch.setattr("xcfg_megatron.placement.find_spec", lambda name: None)
    found = asked({"training.layer_spec": "transformer_engine"})
    assert "pip install 'xcfg-megatron[te]'" in found.unsupported["training.layer_spec"]
    assert asked({"training.layer_spec": "local"}).unsupported == {}


def test_too_few_devices_are_said_before_anything_starts():
    few = asked({"training.tensor_parallel_size": 2}, devices=("cuda:0",))
    assert "2 devices" in few.unsupported["training.tensor_parallel_size"]


def test_the_size_that_is_too_large_is_named():
    """If this fails, a split context that needs more devices is blamed on the tensor-parallel size."""
    few = asked({"training.context_parallel_size": 4}, devices=("cuda:0", "cuda:1"))
    assert list(few.unsupported) == ["training.context_parallel_size"]


def test_a_cpu_is_asked_for_on_a_machine_with_a_gpu():
    """If this fails, Megatron-core finds the GPU of the machine, and the patches for a CPU are left out."""
    assert asked().env["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in asked(devices=("cuda:0",)).env


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vocabulary_divisor": 5}, "there is no option"),
        ({"vocab_divisor": 0}, "not a positive number"),
        ({"vocab_padding_policy": "keep"}, "keep"),
    ],
)
def test_a_wrong_option_is_named(options, says):
    with pytest.raises(ConfigError) as error:
        asked(options=options)
    assert says in str(error.value)

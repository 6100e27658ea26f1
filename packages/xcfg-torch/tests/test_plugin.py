"""The records that planning reads: complete, light, and true of the adapters behind them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from xcfg.errors import ConfigError
from xcfg.schema.runtime import PlacementRequest
from xcfg_torch import capabilities, plugin
from xcfg_torch.placement import placement

V1 = {
    "rollout": (
        "batch.size",
        "rollout.tensor_parallel_size",
        "rollout.context_parallel_size",
        "rollout.dtype",
        "rollout.enable_prefix_caching",
        "rollout.enforce_eager",
        "logp.backend",
    ),
    "training": (
        "batch.size",
        "training.attention_backend",
        "training.compute_dtype",
        "logp.backend",
        "training.sharding",
    ),
}


def test_listing_imports_no_torch():
    modules = "xcfg_torch.plugin, xcfg_torch.placement, xcfg_torch.smoke.placement"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("runtime", plugin.xcfg_runtimes(), ids=lambda item: item.name)
def test_every_v1_knob_has_a_capability_on_its_side(runtime):
    declared = {(item.path, item.side) for item in runtime.capabilities}
    assert {(path, side) for side, paths in V1.items() for path in paths} <= declared
    assert len(declared) == len(runtime.capabilities), "no capability stands twice"


def test_every_factory_exists():
    names = [item.factory for item in (*plugin.xcfg_operator_backends(), *plugin.xcfg_checkpoints())]
    names += [name for item in plugin.xcfg_runtimes() for name in (item.adapter, item.placement)]
    for name in names:
        module, _, attribute = name.partition(":")
        assert callable(getattr(import_module(module), attribute)), name


def test_policies_name_backends_that_declare_what_the_policy_promises():
    backends = {item.backend_id: item for item in plugin.xcfg_operator_backends()}
    for runtime in plugin.xcfg_runtimes():
        for name in runtime.policies["selected_logprob"].values():
            assert name == capabilities.REFERENCE or "run-to-run" in backends[name].properties


def test_smoke_backends_exist_in_cpu_smoke_alone():
    for backend in plugin.xcfg_operator_backends():
        if backend.backend_id.startswith("smoke_only."):
            assert backend.smoke_only and backend.runtimes == ("cpu-smoke",) and backend.devices == ("cpu",)


def _place(side="training", knobs=None, options=None, devices=("cpu",)):
    return placement(PlacementRequest(side=side, knobs=knobs or {}, options=options or {}, devices=devices))


def test_placement_spreads_the_cores_over_the_ranks(monkeypatch):
    monkeypatch.setattr("xcfg_torch.placement._cores", lambda: 8)
    alone = _place()
    assert (alone.world_size, alone.processes, alone.env["OMP_NUM_THREADS"]) == (1, 1, "8")
    sharded = _place(knobs={"training.sharding": "fsdp"})
    assert (sharded.world_size, sharded.processes, sharded.env["OMP_NUM_THREADS"]) == (2, 2, "4")
    assert _place(options={"threads": 3}).env["OMP_NUM_THREADS"] == "3"
    assert alone.env["HF_HUB_OFFLINE"] == "1"


def test_placement_names_what_cannot_be_honoured():
    flash = _place(knobs={"training.attention_backend": "flash_attention_2"})
    assert "CPU" in flash.unsupported["training.attention_backend"]
    few = _place(knobs={"training.sharding": "fsdp"}, devices=("cuda:0",))
    assert "2 devices" in few.unsupported["training.sharding"]
    pair = _place(knobs={"training.sharding": "fsdp"}, devices=("cuda:0", "cuda:1"))
    assert pair.devices == ("cuda:0", "cuda:1") and not pair.unsupported
    single = _place(knobs={"training.sharding": "fsdp"}, options={"fsdp_world_size": 1})
    assert "shards nothing" in single.unsupported["training.sharding"]
    with pytest.raises(ConfigError, match="no option"):
        _place(options={"fsdp_worldsize": 2})

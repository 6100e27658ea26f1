"""The package registers what it announces, gives nothing away for real, and imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest
from xcfg.errors import PluginError
from xcfg.plugin.manager import PluginManager

HEAVY = ("torch", "numpy", "safetensors", "transformers", "vllm", "megatron")


@pytest.fixture(scope="module")
def manager():
    return PluginManager.load(environ={})


def test_it_is_active_and_says_what_is_planned(manager):
    entry = manager.plugin("dumps")
    assert (entry.distribution, entry.status) == ("xcfg-dumps", "active"), entry.reason
    assert not any(entry.provides.values())
    assert "planned: dump reader slime" in entry.reason
    assert "part of this version" in entry.reason
    assert manager.offers("dumps") == {}


def test_the_module_imports_nothing_heavy():
    found = "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys, xcfg_dumps.plugin; print(sorted({found} & set({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_naming_a_format_is_refused_with_what_is_missing(manager):
    offered = [item.record.name for item in manager.dump_readers()]
    for name in ("slime", "miles", "nemo-rl", "prime-rl", "vllm-json"):
        assert name not in offered
        with pytest.raises(PluginError, match="planned and cannot be used: no reader"):
            manager.dump_reader(name)

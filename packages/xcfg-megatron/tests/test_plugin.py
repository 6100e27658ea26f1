"""The package registers what it announces, gives nothing away for real, and imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest
from xcfg.cli.main import main
from xcfg.errors import PluginError
from xcfg.plugin.manager import PluginManager

HEAVY = ("torch", "numpy", "safetensors", "transformers", "vllm", "megatron")


@pytest.fixture(scope="module")
def manager():
    return PluginManager.load(environ={})


def test_it_is_active_and_says_what_is_planned(manager):
    entry = manager.plugin("megatron")
    assert (entry.distribution, entry.status) == ("xcfg-megatron", "active"), entry.reason
    assert not any(entry.provides.values())
    assert "planned: runtime megatron" in entry.reason
    assert "part of this version" in entry.reason
    assert manager.offers("megatron") == {}


def test_the_module_imports_nothing_heavy():
    found = "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys, xcfg_megatron.plugin; print(sorted({found} & set({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_naming_the_runtime_is_refused_with_what_is_missing(manager, capsys):
    with pytest.raises(PluginError, match=r"planned and cannot be used: the adapter .* is not part of this version"):
        manager.runtime("megatron")
    assert "megatron" not in [item.record.name for item in manager.runtimes()]
    words = [
        "ops",
        "resolve",
        "selected_logprob",
        "--side",
        "training",
        "--backend",
        "x",
        "--runtime",
        "megatron",
    ]
    assert main(words) == 2
    assert "not part of this version" in capsys.readouterr().err

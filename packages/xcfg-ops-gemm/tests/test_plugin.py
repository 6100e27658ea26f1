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
    entry = manager.plugin("ops-gemm")
    assert (entry.distribution, entry.status) == ("xcfg-ops-gemm", "active"), entry.reason
    assert not any(entry.provides.values())
    assert "planned: debug matrix ffn" in entry.reason
    assert "part of this version" in entry.reason
    assert manager.offers("ops-gemm") == {}


def test_the_module_imports_nothing_heavy():
    found = "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys, xcfg_ops_gemm.plugin; print(sorted({found} & set({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_naming_the_matrix_is_refused_with_what_is_missing(manager):
    with pytest.raises(PluginError, match=r"planned and cannot be used: .* not part of this version"):
        manager.debug_matrix("ffn")
    assert "ffn" not in [item.record.module for item in manager.debug_matrices()]


def test_no_operator_backend_is_offered(manager):
    assert "xcfg-ops-gemm" not in [item.distribution for item in manager.operator_backends()]

"""The package registers its backends, announces its debug matrix, and imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest
from xcfg.errors import PluginError
from xcfg.plugin.known import package_for
from xcfg.plugin.manager import PluginManager

HEAVY = ("torch", "numpy", "safetensors", "transformers", "vllm", "megatron")


@pytest.fixture(scope="module")
def manager():
    return PluginManager.load(environ={})


def test_it_is_active_and_says_what_is_planned(manager):
    entry = manager.plugin("ops-attention")
    assert (entry.distribution, entry.status) == ("xcfg-ops-attention", "active"), entry.reason
    assert "planned: debug matrix attention" in entry.reason
    assert "part of this version" in entry.reason


def test_the_module_imports_nothing_heavy():
    found = "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys, xcfg_ops_attention.plugin; print(sorted({found} & set({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_naming_the_matrix_is_refused_with_what_is_missing(manager):
    with pytest.raises(PluginError, match=r"planned and cannot be used: .* not part of this version"):
        manager.debug_matrix("attention")
    assert "attention" not in [item.record.module for item in manager.debug_matrices()]


def test_every_operation_has_one_reference(manager):
    """If this fails, the policy `reference` finds no backend of an operation, or two."""
    found = [item.record for item in manager.operator_backends() if item.distribution == "xcfg-ops-attention"]
    references = [item.operation for item in found if "reference" in item.aliases]
    assert sorted(references) == sorted({item.operation for item in found}) == ["attention", "rotary"]
    assert all(package_for("operator backend", item.operation) == "xcfg-ops-attention" for item in found)

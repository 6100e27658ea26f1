"""The plugin module: light, and valid for the hook specifications."""

from __future__ import annotations

import subprocess
import sys

import pluggy
from xcfg.plugin import PROJECT, spec
from xcfg_ops_logp import plugin


def test_hooks_are_known():
    """If this fails, a misspelt hook is never called."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(spec)
    manager.register(plugin)
    manager.check_pending()
    assert [item.backend_id for found in manager.hook.xcfg_operator_backends() for item in found] == [
        "xcfg.reference_logp"
    ]


def test_torch_is_not_imported():
    """If this fails, `xcfg plan` waits for torch."""
    code = "import xcfg_ops_logp.plugin, xcfg_ops_logp.contract, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

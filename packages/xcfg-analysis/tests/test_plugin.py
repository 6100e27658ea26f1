"""The package registers what it has, and imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest
from xcfg.cli.main import main
from xcfg.plugin.manager import PluginManager
from xcfg_testkit import PluginContract

HEAVY = ("torch", "numpy", "safetensors", "transformers", "vllm", "megatron")


@pytest.fixture(scope="module")
def manager():
    return PluginManager.load(environ={})


def test_it_is_active_and_offers_what_it_has(manager):
    entry = manager.plugin("analysis")
    assert (entry.distribution, entry.status) == ("xcfg-analysis", "active"), entry.reason
    assert not any(entry.provides.values())
    offers = manager.offers("analysis")
    assert set(offers) == {"signatures", "profiles", "commands"}
    assert offers["commands"] == ("analyze", "cube", "minimize", "gate")
    assert offers["profiles"] == ("A0", "A1", "A2", "A3", "A4", "A5", "A0-A5")
    assert len(offers["signatures"]) == 16 and "lag" in offers["signatures"]
    assert manager.signature("lag").distribution == "xcfg-analysis"


def test_the_module_imports_nothing_heavy():
    found = "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys, xcfg_analysis.plugin; print(sorted({found} & set({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    for command, first in (("analyze", "Say"), ("cube", "Show"), ("minimize", "Find"), ("gate", "Give")):
        assert any(line[:2] == [command, first] for line in lines), command


class TestContract(PluginContract):
    """The kit: light, known hooks, valid records, factories that exist."""

    module = "xcfg_analysis.plugin"
    entry_point = "analysis"

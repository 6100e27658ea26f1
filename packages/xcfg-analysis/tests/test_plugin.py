"""The package registers what it has and what it announces, and imports nothing heavy."""

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


def test_it_is_active_and_says_what_is_planned(manager):
    entry = manager.plugin("analysis")
    assert (entry.distribution, entry.status) == ("xcfg-analysis", "active"), entry.reason
    assert not any(entry.provides.values())
    assert "planned: command minimize" in entry.reason
    assert "in this version" in entry.reason
    offers = manager.offers("analysis")
    assert set(offers) == {"signatures", "profiles", "commands"}
    assert offers["commands"] == ("analyze", "cube", "gate")
    assert offers["profiles"] == ("A0", "A1", "A2", "A3", "A4", "A5", "A0-A5")
    assert len(offers["signatures"]) == 16 and "lag" in offers["signatures"]
    assert manager.signature("lag").distribution == "xcfg-analysis"


def test_the_module_imports_nothing_heavy():
    found = "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys, xcfg_analysis.plugin; print(sorted({found} & set({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", ["minimize"])
def test_calling_a_command_exits_2_and_says_what_is_missing(command, capsys):
    assert main([command, "somewhere", "--anything"]) == 2
    assert f"the command {command!r} is planned and does nothing yet: " in capsys.readouterr().err


def test_help_marks_the_commands(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["analyze", "Say"] for line in lines if line.strip())
    for command in ["minimize"]:
        assert any(line.split()[:2] == [command, "(planned)"] for line in lines if line.strip())


class TestContract(PluginContract):
    """The kit: light, known hooks, valid records, factories that exist."""

    module = "xcfg_analysis.plugin"
    entry_point = "analysis"

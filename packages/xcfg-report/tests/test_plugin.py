"""The package registers what it announces, gives nothing away for real, and imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from xcfg.cli.main import main
from xcfg.errors import PluginError
from xcfg.plugin.manager import PluginManager

HEAVY = ("torch", "numpy", "safetensors", "transformers", "vllm", "megatron")


@pytest.fixture(scope="module")
def manager():
    return PluginManager.load(environ={})


def test_it_is_active_and_says_what_is_planned(manager):
    entry = manager.plugin("report")
    assert (entry.distribution, entry.status) == ("xcfg-report", "active"), entry.reason
    assert not any(entry.provides.values())
    assert "planned: command report, view" in entry.reason
    assert "part of this version" in entry.reason
    assert manager.offers("report") == {}


def test_the_module_imports_nothing_heavy():
    found = "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys, xcfg_report.plugin; print(sorted({found} & set({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", ["report", "view"])
def test_calling_a_command_exits_2_and_says_what_is_missing(command, capsys):
    assert main([command, "somewhere", "--anything"]) == 2
    assert f"the command {command!r} is planned and does nothing yet: " in capsys.readouterr().err


def test_help_marks_the_commands(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for command in ["report", "view"]:
        assert any(line.split()[:2] == [command, "(planned)"] for line in lines if line.strip())


def test_naming_a_renderer_is_refused_with_what_is_missing(manager):
    offered = [item.record.name for item in manager.renderers()]
    for name in ("html", "trace"):
        assert name not in offered
        with pytest.raises(PluginError, match="planned and cannot be used: no renderer"):
            manager.renderer(name)


def test_what_there_is_instead_is_named_and_is_there(capsys):
    """Failing means that a person who wants JUnit XML is told that there is none, or sent to an option that is not."""
    assert main(["report", "somewhere"]) == 2
    assert "`xcfg gate RUN --junit FILE` writes JUnit XML" in capsys.readouterr().err
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert "`html` and `trace`" in text and "xcfg gate RUN --junit FILE" in text
    gate = pytest.importorskip("xcfg_analysis.gate.command", reason="xcfg-analysis is another package").gate
    assert "--junit" in {name for option in gate.params for name in option.opts}

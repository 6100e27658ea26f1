"""What the manager offers, refuses and blocks when nothing is wrong with a plugin."""

from __future__ import annotations

import logging

import pytest
from xcfg.errors import MissingDependencyError, PluginError, UnknownNameError, UsageError
from xcfg.plugin.manager import PluginManager


def test_records_come_with_their_origin(load):
    manager = load("good")
    assert manager.knobs()["kit.switch"].aliases == {"first": "a"}
    knob = manager.knob("kit.switch")
    assert (knob.plugin, knob.distribution, knob.version) == ("kit-good", "kit-good", "1.0")
    assert [item.record.backend_id for item in manager.operator_backends()] == ["kit.backend"]
    assert manager.renderer("kit-text").record.factory == "kit_good:render"
    assert manager.command("kit-hello").plugin == "kit-good"
    assert list(manager.knobs()) == sorted(manager.knobs())


def test_core_is_a_plugin_like_the_others(load):
    entry = load().plugins()[0]
    assert (entry.name, entry.distribution, entry.status) == ("core", "xcfg-core", "active")
    assert "batch.size" in entry.provides["knobs"]


def test_a_list_is_taken_as_a_tuple_and_checked_alike(load):
    (backend,) = load("good").operator_backends()
    assert backend.record.aliases == ("kit",)


def test_planned_records_are_listed_and_never_offered(load):
    manager = load("good")
    assert [item.record.name for item in manager.runtimes()] == ["external", "kit-runtime", "kit-engine"]
    assert [(noun, item.record.name) for noun, item in manager.planned()] == [
        ("runtime", "kit-later"),
        ("command", "kit-later"),
    ]
    entry = manager.plugin("kit-good")
    assert entry.provides["runtimes"] == ("kit-runtime", "kit-engine")
    assert "planned: runtime kit-later (its adapter is not written)" in entry.reason
    with pytest.raises(PluginError, match=r"runtime 'kit-later' is planned.*its adapter is not written") as caught:
        manager.runtime("kit-later")
    assert "kit-runtime" in caught.value.hint
    assert caught.value.exit_code == 2


def test_runtime_without_its_engine_names_the_command_that_installs_it(load):
    manager = load("good")
    assert manager.runtime("kit-runtime").record.policies["kit_operation"]["production"] == "kit.backend"
    with pytest.raises(MissingDependencyError, match="runtime 'kit-engine' needs") as caught:
        manager.runtime("kit-engine")
    assert caught.value.hint == "pip install 'kit-good[engine]'"
    assert "pip install 'kit-good[engine]'" in manager.plugin("kit-good").reason


@pytest.mark.parametrize(
    ("noun", "name", "package"),
    [
        ("runtime", "vllm", "xcfg-vllm"),
        ("runtime", "cpu-smoke", "xcfg-torch"),
        ("command", "analyze", "xcfg-analysis"),
        ("knob", "gemm.kernel", "xcfg-ops-gemm"),
        ("knob", "logprob.reduce", "xcfg-ops-logp"),
        ("operator backend", "selected_logprob/xcfg.reference_logp", "xcfg-ops-logp"),
        ("debug matrix", "ffn", "xcfg-ops-gemm"),
    ],
)
def test_hint_names_the_package_that_would_bring_it(load, noun, name, package):
    assert f"pip install {package}" in load().hint(noun, name)


def test_unknown_names_say_what_is_near(load):
    manager = load("good")
    with pytest.raises(UnknownNameError) as caught:
        manager.runtime("kit-runtme")
    assert "'kit-runtime'" in caught.value.hint
    with pytest.raises(UnknownNameError) as caught:
        manager.knob("batch.sizes")
    assert "'batch.size'" in caught.value.hint
    assert manager.knob_providers()["gemm."] == "xcfg-ops-gemm"


def test_require_accepts_names_and_ranges(load):
    manager = load("good")
    assert manager.require_plugin("kit-good").status == "active"
    assert manager.require_plugin("KIT_Good>=1.0,<2").version == "1.0"
    assert [entry.name for entry in manager.require(["kit-good", "core"])] == ["kit-good", "core"]
    with pytest.raises(PluginError, match=r"wanted as >=2, installed is 1\.0"):
        manager.require_plugin("kit-good>=2")
    with pytest.raises(MissingDependencyError) as caught:
        manager.require_plugin("xcfg-vllm")
    assert caught.value.hint == "pip install xcfg-vllm"
    with pytest.raises(UnknownNameError) as unknown:
        manager.require_plugin("kit-goood")
    assert "'kit-good'" in unknown.value.hint
    with pytest.raises(UsageError, match="neither a plugin name nor a requirement"):
        manager.require_plugin("not a name !")


@pytest.mark.parametrize("blocked", [("kit-good",), ("Kit_Good",), ("*",)])
def test_blocked_plugins_are_listed_and_never_imported(load, blocked):
    manager = load("good", "raises_on_import", blocked=(*blocked, "kit-raises"))
    assert {entry.name: entry.status for entry in manager.plugins()} == {
        "core": "active",
        "kit-good": "blocked",
        "kit-raises": "blocked",
    }
    assert "kit.switch" not in manager.knobs()
    with pytest.raises(PluginError, match="is blocked: by XCFG_DISABLE_PLUGINS or --no-plugin"):
        manager.require_plugin("kit-good")


def test_environment_variable_blocks(load):
    manager = load("good", "slow", disable=" kit-slow , ")
    assert [entry.status for entry in manager.plugins()] == ["active", "active", "blocked"]
    assert [entry.status for entry in load("good", "slow", disable="*").plugins()] == [
        "active",
        "blocked",
        "blocked",
    ]


def test_core_cannot_be_blocked(load):
    with pytest.raises(UsageError, match="cannot be blocked"):
        load(blocked=("core",))
    with pytest.raises(UsageError, match="cannot be blocked"):
        load(disable="xcfg-core")


def test_blocking_what_is_not_installed_is_remarked(load, caplog):
    with caplog.at_level(logging.WARNING, "xcfg.plugin"):
        load(blocked=("kit-typo",))
    assert "no plugin 'kit-typo' is installed" in caplog.text


def test_what_is_installed_here_is_whole():
    entries = PluginManager.load(environ={}).plugins()
    assert entries[0].name == "core"
    assert len({(entry.name, entry.distribution) for entry in entries}) == len(entries)

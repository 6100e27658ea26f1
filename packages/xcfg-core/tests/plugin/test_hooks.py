"""The order in which hooks are called, and that every hook of spec.py has a place in the manager."""

from __future__ import annotations

import inspect
import logging

import pytest
from xcfg.plugin import spec
from xcfg.plugin._offers import KINDS
from xcfg.plugin.manager import OBSERVERS

SPECIFIED = [name for name, value in vars(spec).items() if name.startswith("xcfg_") and inspect.isfunction(value)]


def test_every_hook_is_handled_in_the_order_of_the_specification():
    assert [kind.hook for kind in KINDS] + list(OBSERVERS) == SPECIFIED


def test_registration_hooks_take_no_argument():
    for kind in KINDS:
        assert not inspect.signature(getattr(spec, kind.hook)).parameters


def test_transcript_of_a_plugin_with_all_hooks(load):
    manager = load("everything")
    import kit_everything

    registered = list(kit_everything.TRANSCRIPT)
    manager.knobs(), manager.runtimes(), manager.commands(), manager.plugins()
    assert registered == kit_everything.TRANSCRIPT  # asked once, at the load
    manager.observe_before_case("case-a")
    manager.observe_after_case("case-a", "PASS")
    manager.observe_after_run("summary", "runs/a", "digest")
    assert kit_everything.TRANSCRIPT == [
        "xcfg_knobs",
        "xcfg_operator_backends",
        "xcfg_runtimes",
        "xcfg_checkpoints",
        "xcfg_debug_matrices",
        "xcfg_renderers",
        "xcfg_dump_readers",
        "xcfg_signatures",
        "xcfg_profiles",
        "xcfg_commands",
        "xcfg_before_case case-a",
        "xcfg_after_case case-a PASS",
        "xcfg_after_run summary runs/a digest",
    ]


def test_observer_that_raises_is_logged_and_the_next_one_still_hears(load, caplog, capsys):
    manager = load("observer_raises", "everything")
    import kit_everything

    with caplog.at_level(logging.WARNING, "xcfg.plugin"):
        manager.observe_before_case("case-a")
        manager.observe_after_case("case-a", "PASS")
    assert "plugin 'a-observer' raised in xcfg_before_case: SystemExit: 0" in caplog.text
    assert "plugin 'a-observer' raised in xcfg_after_case: RuntimeError: cannot log case-a" in caplog.text
    assert kit_everything.TRANSCRIPT[-2:] == ["xcfg_before_case case-a", "xcfg_after_case case-a PASS"]
    assert capsys.readouterr().out == ""  # what it prints must not reach the document on stdout


def test_interrupt_in_an_observer_stops_the_run(load, monkeypatch):
    manager = load("everything")
    import kit_everything

    class Interrupting(list):
        def append(self, _):
            raise KeyboardInterrupt

    monkeypatch.setattr(kit_everything, "TRANSCRIPT", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        manager.observe_before_case("case-a")

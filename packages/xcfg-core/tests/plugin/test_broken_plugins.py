"""A faulty plugin is listed with its status and reason, gives nothing away, and harms nobody else."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from xcfg.errors import PluginError

DATA = Path(__file__).parent / "data"

FAULTS = [
    ("missing_module", "kit-missing", "broken", "No module named 'kit_missing_module'"),
    ("missing_attribute", "kit-attribute", "broken", "has no attribute 'plugin'"),
    ("unknown_hook", "kit-unknown", "broken", "xcfg_launchers is no hook of xcfg"),
    ("unmarked_hook", "kit-unmarked", "broken", "xcfg_knobs is defined without @hookimpl"),
    ("wrapper", "kit-wrapper", "broken", "xcfg_knobs is a wrapper"),
    ("wrong_argument", "kit-argument", "broken", "can not be found in the hookspec"),
    ("raises_on_import", "kit-raises", "broken", "ValueError: several lines of trouble"),
    ("exits_on_import", "kit-exits", "broken", "called sys.exit(0) while it was loaded"),
    ("panics_on_import", "kit-panics", "broken", "PanicException: a thread panicked"),
    ("raises_in_hook", "kit-hook", "broken", "xcfg_knobs raised KeyError: 'gone'"),
    ("wrong_record", "kit-record", "broken", "xcfg_knobs[0] is dict, not KnobDefinition"),
    ("wrong_return", "kit-return", "broken", "xcfg_knobs returned generator, not a tuple"),
    ("returns_none", "kit-none", "broken", "xcfg_knobs returned NoneType, not a tuple"),
    ("wrong_field", "kit-field", "broken", "xcfg_renderers[0]: $.summary: Expected `str`, got `int`"),
    ("wrong_factory", "kit-factory", "broken", "factory is 'kit_factory.render', not 'module:attr'"),
    ("twice_in_one", "kit-twice", "broken", "xcfg_knobs offers the knob 'kit.same' twice"),
    ("no_metadata", "kit-bare", "broken", "the metadata of its distribution cannot be read"),
    ("too_old", "kit-old", "incompatible", "it needs xcfg-core<0.0.2,>=0.0.1, installed is"),
    ("too_old", "kit-garbled", "incompatible", "cannot be read"),
    ("other_api", "kit-api", "incompatible", "written for plugin interface 2, this core has 1"),
    ("duplicate_core", "kit-shadow", "conflict", "the knob 'batch.size' is offered by xcfg-core"),
    ("duplicate_command", "kit-command", "conflict", "the command 'run' is offered by xcfg-core"),
    ("named_core", "core", "conflict", "the plugin name 'core' belongs to xcfg-core"),
]


def third(manager):
    return {entry.name: entry for entry in manager.plugins()[1:]}


@pytest.mark.parametrize(("kind", "name", "status", "reason"), FAULTS)
def test_fault_becomes_status_and_reason(load, kind, name, status, reason):
    manager = load(kind, "good")
    entry = third(manager)[name]
    assert (entry.status, reason in entry.reason) == (status, True), entry
    assert "\n" not in entry.reason
    assert not any(entry.provides.values())
    assert manager.offers("core")["commands"]
    assert third(manager)["kit-good"].status == "active"
    with pytest.raises(PluginError):
        manager.require_plugin("kit-bare" if name == "kit-bare" else entry.distribution if name == "core" else name)


@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in FAULTS}))
def test_nothing_of_a_faulty_plugin_is_used(load, kind):
    alone, beside = load("good"), load("good", kind)
    assert beside.knobs() == alone.knobs()
    assert [item.record.name for item in beside.commands()] == [item.record.name for item in alone.commands()]


@pytest.mark.parametrize("kind", ["wrong_argument", "unknown_hook", "raises_in_hook", "wrong_record", "duplicate_core"])
def test_a_plugin_that_was_registered_leaves_no_hook_behind(load, kind):
    hooks = load(kind)._hooks
    assert [name for name, _ in hooks.list_name_plugin()] == ["core"]
    assert {impl.plugin_name for caller in vars(hooks.hook).values() for impl in caller.get_hookimpls()} == {"core"}


def test_what_a_plugin_prints_while_it_is_loaded_goes_to_stderr(load, capsys):
    load("exits_on_import")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "noise of an import\n")


def test_unknown_hook_is_allowed_when_it_is_marked_optional(load):
    assert third(load("optional_hook"))["kit-optional"].status == "active"


def test_two_plugins_with_one_id_are_both_out_and_both_named(load):
    manager = load("duplicate_id")
    left, right = third(manager)["kit-left"], third(manager)["kit-right"]
    assert left.status == right.status == "conflict"
    for entry in (left, right):
        assert (
            "'kit_operation/twin.left' is offered by kit-left 1.0 (kit-left) and kit-right 2.5 (kit-right)"
            in entry.reason
        )
    assert manager.operator_backends() == ()
    assert third(manager)["kit-bystander"].status == "active"


def test_conflict_is_settled_by_blocking_one(load):
    manager = load("duplicate_id", blocked=("kit-left",))
    assert [item.record.backend_id for item in manager.operator_backends()] == ["twin.right"]


def test_same_entry_point_name_is_a_conflict_before_anything_is_imported(load):
    entries = load("same_name").plugins()[1:]
    assert [entry.status for entry in entries] == ["conflict", "conflict"]
    for entry in entries:
        assert "kit-one 1.0" in entry.reason
        assert "kit-two 2.0" in entry.reason


def test_same_entry_point_name_is_settled_by_the_distribution_name(load):
    entries = {entry.distribution: entry for entry in load("same_name", blocked=("kit-one",)).plugins()[1:]}
    assert entries["kit-one"].status == "blocked"
    assert entries["kit-two"].status == "broken"  # its module refuses to be imported, so it was


def test_other_groups_and_unreadable_entry_points_are_no_plugins(load):
    assert third(load("other_group", "not_text")) == {}


def test_slow_plugin_is_named(load, monkeypatch, caplog):
    monkeypatch.setattr("xcfg.plugin._discovery.SLOW_SECONDS", 0.01)
    with caplog.at_level(logging.WARNING, "xcfg.plugin"):
        manager = load("slow")
    assert "kit.slow" in manager.knobs()
    assert "plugin 'kit-slow' took" in caplog.text


def test_everything_broken_at_once_leaves_the_command_line_whole(xcfg):
    kinds = tuple(folder.name for folder in DATA.iterdir() if folder.is_dir())
    done = xcfg("plugins", "list", "--json", kinds=kinds)
    assert done.returncode == 0, done.stderr
    entries = {entry["name"]: entry for entry in json.loads(done.stdout)["plugins"]}
    assert {entry["status"] for entry in entries.values()} >= {"active", "broken", "conflict", "incompatible"}
    assert "noise of an import" in done.stderr  # a print while loading must not spoil the document
    assert "kit-hello" in xcfg("--help", kinds=kinds).stdout


@pytest.mark.parametrize("kind", ["exits_on_import", "panics_on_import", "raises_on_import", "missing_module"])
def test_check_says_what_is_wrong_and_exits_2(xcfg, kind):
    name = next(name for folder, name, *_ in FAULTS if folder == kind)
    done = xcfg("plugins", "check", "--json", kinds=(kind,))
    error = json.loads(done.stdout)
    assert (done.returncode, error["exit_code"], error["kind"]) == (2, 2, "plugin")
    assert f"{name} is broken" in error["message"]
    assert xcfg("plugins", "list", kinds=(kind,)).returncode == 0

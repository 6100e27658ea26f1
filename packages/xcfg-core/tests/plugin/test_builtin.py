"""What core registers of itself: every reference leads somewhere, and nothing is said twice in two ways."""

from __future__ import annotations

import click
import pytest
from xcfg.cli import main as command_line
from xcfg.plugin._resolve import resolve
from xcfg.plugin.builtin.commands import CORE_COMMANDS
from xcfg.plugin.builtin.readers import CANONICAL_READERS
from xcfg.plugin.protocols import DumpReader


@pytest.mark.parametrize("command", CORE_COMMANDS, ids=lambda command: command.name)
def test_each_command_of_core_exists_under_its_name(command):
    found = resolve(command.factory)
    assert isinstance(found, click.Command)
    assert found.name == command.name
    assert command_line.CORE[command.name] is command


@pytest.mark.parametrize("reader", CANONICAL_READERS, ids=lambda reader: reader.name)
def test_each_canonical_reader_exists(reader):
    assert isinstance(resolve(reader.factory)(), DumpReader)


def test_core_offers_the_external_runtime(load):
    manager = load()
    external = manager.runtime("external")
    assert (external.plugin, external.distribution) == ("core", "xcfg-core")
    assert callable(resolve(external.record.placement))
    assert [item.record.name for item in manager.dump_readers()] == ["jsonl", "safetensors"]

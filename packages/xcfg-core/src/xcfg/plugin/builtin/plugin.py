"""The plugin `core`: the shared knobs, the runtimes, dump readers and commands of core, as records."""

from __future__ import annotations

from xcfg.plugin._resolve import resolve
from xcfg.plugin.builtin.commands import CORE_COMMANDS
from xcfg.plugin.builtin.readers import CANONICAL_READERS
from xcfg.plugin.markers import hookimpl
from xcfg.plugin.provide import CommandProvider, DumpReaderDescriptor
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.runtime import RuntimeDescriptor

RUNTIMES = ("xcfg.running.external:EXTERNAL",)
"""By reference, since this room lies below the one that runs them; the modules import nothing heavy."""


@hookimpl
def xcfg_knobs() -> tuple[KnobDefinition, ...]:
    """Return the knobs that every runtime shares."""
    from xcfg.plugin.builtin.knobs import SHARED_KNOBS

    return tuple(SHARED_KNOBS)


@hookimpl
def xcfg_runtimes() -> tuple[RuntimeDescriptor, ...]:
    """Return the runtimes of core."""
    return tuple(resolve(reference) for reference in RUNTIMES)


@hookimpl
def xcfg_dump_readers() -> tuple[DumpReaderDescriptor, ...]:
    """Return the readers of the canonical formats."""
    return CANONICAL_READERS


@hookimpl
def xcfg_commands() -> tuple[CommandProvider, ...]:
    """Return the commands of core, so that no other plugin can take their names."""
    return CORE_COMMANDS

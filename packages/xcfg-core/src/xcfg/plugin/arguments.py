"""The table of an engine's arguments, read from the two JSON files that its adapter package ships."""

from __future__ import annotations

from importlib.resources import files
from typing import TypeVar

from xcfg.errors import PluginError, XcfgError
from xcfg.schema import codec
from xcfg.schema.arguments import ARGUMENTS, ROWS, ArgumentTable, Generated, HandWritten

WRITTEN, GENERATED = "arguments.json", "table.json"
File = TypeVar("File", HandWritten, Generated)


def read_table(package: str) -> ArgumentTable:
    """Return the table of the import package `package`. Raises PluginError when a file is malformed."""
    written = _read(package, WRITTEN, HandWritten, ARGUMENTS)
    generated = _read(package, GENERATED, Generated, ROWS)
    return ArgumentTable(arguments=written.arguments, traps=written.traps, rows=generated.rows)


def _read(package: str, name: str, kind: type[File], version: str) -> File:
    source = f"{package}/{name}"
    try:
        found = codec.decode_json(files(package).joinpath(name).read_bytes(), kind, source=source)
    except OSError as error:
        raise PluginError(f"{source} cannot be read: {error.strerror}") from None
    except XcfgError as error:
        raise PluginError(error.message, hint="Reinstall the package.") from None
    if found.schema_version != version:
        raise PluginError(f"{source} is {found.schema_version!r}, this core reads {version!r}")
    return found

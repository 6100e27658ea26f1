"""What is known of the arguments of Transformers, FSDP and torch: arguments.json by hand, table.json from runs."""

from __future__ import annotations

from xcfg.plugin.arguments import read_table
from xcfg.schema.arguments import ArgumentTable


def table() -> ArgumentTable:
    """Return the table of this package. Raises PluginError when a file of it is malformed."""
    return read_table("xcfg_torch")

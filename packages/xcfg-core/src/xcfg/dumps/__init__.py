"""Dumps: one row per token, read in batches, never unpickled; the canonical formats JSONL and safetensors.

A reader yields batches of canonical columns with both log probabilities or one; `collect_rows` makes them the
rows of a file, `join` brings a rollout and a training file together, `table_of` gives what is compared, and
`frozen_rollout` what can be scored again.
"""

from __future__ import annotations

from xcfg.dumps.columns import OPTIONAL, REQUIRED, is_canonical
from xcfg.dumps.damage import Damage, damage
from xcfg.dumps.folder import Folder, list_folder
from xcfg.dumps.frozen import frozen_rollout
from xcfg.dumps.join import Joined, join, order_sides
from xcfg.dumps.jsonl import JsonlReader
from xcfg.dumps.redact import redact
from xcfg.dumps.rows import Rows, collect_rows
from xcfg.dumps.table import DumpTable, collect, read_rows, read_table, table_of
from xcfg.dumps.tensors import SafetensorsReader

__all__ = [
    "OPTIONAL",
    "REQUIRED",
    "Damage",
    "DumpTable",
    "Folder",
    "Joined",
    "JsonlReader",
    "Rows",
    "SafetensorsReader",
    "collect",
    "collect_rows",
    "damage",
    "frozen_rollout",
    "is_canonical",
    "join",
    "list_folder",
    "order_sides",
    "read_rows",
    "read_table",
    "redact",
    "table_of",
]

"""The canonical dump formats, JSONL and safetensors: one row per token, read in batches, never unpickled."""

from __future__ import annotations

from xcfg.dumps.columns import OPTIONAL, REQUIRED
from xcfg.dumps.readers import READERS, JsonlReader, SafetensorsReader
from xcfg.dumps.table import DumpTable, collect, read_table

__all__ = [
    "OPTIONAL",
    "READERS",
    "REQUIRED",
    "DumpTable",
    "JsonlReader",
    "SafetensorsReader",
    "collect",
    "read_table",
]

"""The readers that core itself brings; each implements xcfg.plugin.protocols.DumpReader."""

from __future__ import annotations

from xcfg.dumps.jsonl import JsonlReader
from xcfg.dumps.tensors import SafetensorsReader
from xcfg.plugin.provide import DumpReaderDescriptor

READERS = (
    DumpReaderDescriptor(
        name="jsonl",
        summary="Canonical columns, one JSON object per token and line.",
        factory="xcfg.dumps.jsonl:JsonlReader",
        suffixes=(".jsonl", ".ndjson"),
        framework="xcfg",
    ),
    DumpReaderDescriptor(
        name="safetensors",
        summary="Canonical columns, one tensor per column; the metadata may attest to compute dtypes.",
        factory="xcfg.dumps.tensors:SafetensorsReader",
        suffixes=(".safetensors",),
        framework="xcfg",
    ),
)

__all__ = ["READERS", "JsonlReader", "SafetensorsReader"]

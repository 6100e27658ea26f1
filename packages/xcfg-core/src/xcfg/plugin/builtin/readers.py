"""The canonical dump formats as records; what reads them is imported only when a dump is read."""

from __future__ import annotations

from xcfg.plugin.provide import DumpReaderDescriptor

CANONICAL_READERS = (
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

"""The package registers readers that exist, and imports nothing heavy to do so."""

from __future__ import annotations

import subprocess
import sys

from xcfg.plugin.operators import load_factory
from xcfg.plugin.protocols import DumpReader

HEAVY = ("torch", "numpy", "pyarrow", "safetensors", "transformers", "vllm", "megatron")


def test_it_is_active_and_brings_readers(manager):
    entry = manager.plugin("dumps")
    assert (entry.distribution, entry.status) == ("xcfg-dumps", "active"), entry.reason


def test_the_module_imports_nothing_heavy():
    found = "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys, xcfg_dumps.plugin; print(sorted({found} & set({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_every_factory_is_a_reader(manager):
    ours = [item.record for item in manager.dump_readers() if item.plugin == "dumps"]
    assert len(ours) == 14
    for record in ours:
        assert isinstance(load_factory(record.factory)(), DumpReader), record.name


def test_reading_needs_neither_torch_nor_pyarrow_unless_the_file_does():
    """Failing means that a JSON dump costs seconds of importing torch."""
    modules = "capture, frozen, nemo_rl, npz, parquet, prime_rl, ptfile, refused, refused_layouts, slime, vllm_json"
    found = "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys; from xcfg_dumps import {modules}; print(sorted({found} & {{'torch', 'pyarrow'}}))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"

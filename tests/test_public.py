"""The front door: what `import xcfg` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import xcfg
from xcfg import plugin

HEAVY = ("torch", "transformers", "vllm", "megatron", "triton", "accelerate")

PUBLIC = [
    "StoredCase",
    "StoredRun",
    "__version__",
    "bind",
    "common_options",
    "compare",
    "compare_contracts",
    "emit",
    "freeze",
    "freeze_dump",
    "is_run",
    "iter_cases",
    "load",
    "load_plugins",
    "open_dump",
    "open_run",
    "plan",
    "probe",
    "probing",
    "read_determinism",
    "run",
    "serve",
    "verify",
]
"""Changes only on purpose: a name that is added here has to be kept, one that is removed breaks somebody."""


def test_the_front_door_is_what_was_agreed() -> None:
    """Failing means that a public name appeared or went without anybody deciding so."""
    assert xcfg.__all__ == PUBLIC


def test_all_is_sorted_and_complete() -> None:
    """Failing means that `__all__` lies: unsorted, doubled, or naming what is not there."""
    assert list(xcfg.__all__) == sorted(xcfg.__all__)
    for module in (xcfg, plugin):
        assert len(set(module.__all__)) == len(module.__all__), module.__name__
        for name in module.__all__:
            assert getattr(module, name) is not None, f"{module.__name__}.{name}"


def test_public_functions_say_what_they_do() -> None:
    """Failing means that help(xcfg.run) is empty."""
    for name in PUBLIC:
        if name != "__version__":
            assert (getattr(xcfg, name).__doc__ or "").strip(), name


def loaded_by(code: str) -> set[str]:
    """Return which heavy packages a fresh interpreter has loaded after `code`."""
    probe = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.splitlines()[-1].split()) if done.stdout.strip() else set()


def test_importing_the_front_door_loads_no_engine() -> None:
    """Failing means that `import xcfg`, or listing and planning, waits for torch."""
    assert loaded_by("import torch") == {"torch"}, "the probe itself sees nothing"
    assert loaded_by("import xcfg, xcfg.plugin, xcfg.errors, xcfg.schema.experiment") == set()


def test_loading_every_plugin_loads_no_engine() -> None:
    """Failing means that a plugin.py imports something heavy, so that `xcfg --help` does too."""
    assert loaded_by("import xcfg; print([entry.status for entry in xcfg.load_plugins().plugins()])") == set()

"""xcfg: which configuration difference makes rollout and training log probabilities drift.

The front door for programs; everything is loaded on first use, so importing this costs nothing.

    import xcfg
    summary = xcfg.run("experiment.json", output_root="runs")
    for case in xcfg.iter_cases("runs/my-experiment"):
        print(case.label, case.comparison.status)
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "StoredCase": "xcfg.flow.api",
    "StoredRun": "xcfg.flow.stored_run",
    "bind": "xcfg.binding.verdict",
    "common_options": "xcfg.cli._output",
    "compare": "xcfg.flow.api",
    "compare_contracts": "xcfg.binding.compare",
    "emit": "xcfg.cli._output",
    "freeze": "xcfg.flow.api",
    "freeze_dump": "xcfg.flow.api",
    "is_run": "xcfg.flow.stored_run",
    "iter_cases": "xcfg.flow.api",
    "load": "xcfg.flow.api",
    "load_plugins": "xcfg.flow.api",
    "open_dump": "xcfg.flow.api",
    "open_run": "xcfg.flow.api",
    "plan": "xcfg.flow.api",
    "probe": "xcfg.flow.api",
    "probing": "xcfg.flow.api",
    "read_determinism": "xcfg.binding.determinism",
    "run": "xcfg.flow.api",
    "serve": "xcfg.running.serve",
    "verify": "xcfg.flow.api",
}

__all__ = sorted(["__version__", *_WHERE])

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load a front-door name on first use."""
    if name not in _WHERE:
        raise AttributeError(f"module 'xcfg' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)

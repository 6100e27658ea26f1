"""Plugins as real distribution folders on disk; each folder of `data` is one entry of a search path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from xcfg.plugin.manager import PluginManager

DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True)
def forget_modules():
    """Import the modules of the test plugins anew in each test."""
    yield
    for name in [name for name in sys.modules if name.startswith("kit_")]:
        del sys.modules[name]


@pytest.fixture
def load(monkeypatch):
    """Load core and the plugins of some folders, and nothing else that is installed."""

    def _load(*kinds: str, blocked: tuple[str, ...] = (), disable: str = "") -> PluginManager:
        folders = [str(DATA / kind) for kind in kinds]
        for folder in folders:
            monkeypatch.syspath_prepend(folder)
        return PluginManager.load(blocked=blocked, path=folders, environ={"XCFG_DISABLE_PLUGINS": disable})

    return _load


@pytest.fixture
def xcfg():
    """Run `python -m xcfg` in a process of its own with some folders on PYTHONPATH."""

    def _run(*arguments: str, kinds: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
        search = os.pathsep.join(str(DATA / kind) for kind in kinds)
        known = {key: value for key, value in os.environ.items() if not key.startswith("XCFG_")}
        return subprocess.run(
            [sys.executable, "-m", "xcfg", *arguments],
            env={**known, "PYTHONPATH": search, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return _run

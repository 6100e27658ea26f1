"""Call the command line in this process, or in one of its own, with plugin folders of tests/plugin/data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from xcfg.cli.main import main

DATA = Path(__file__).parents[1] / "plugin" / "data"


@pytest.fixture
def call(capsys, monkeypatch):
    """Call main() and return (exit code, stdout, stderr)."""

    def _call(*arguments: str, kinds: tuple[str, ...] = ()) -> tuple[int, str, str]:
        for kind in kinds:
            monkeypatch.syspath_prepend(DATA / kind)
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    yield _call
    for name in [name for name in sys.modules if name.startswith("kit_")]:
        del sys.modules[name]


@pytest.fixture
def process():
    """Start `python ARGUMENTS` with plugin folders on PYTHONPATH; returns the finished process."""

    def _process(*arguments: str, kinds: tuple[str, ...] = (), **options: object) -> subprocess.CompletedProcess[str]:
        known = {key: value for key, value in os.environ.items() if not key.startswith("XCFG_")}
        return subprocess.run(
            [sys.executable, *arguments],
            env={**known, "PYTHONPATH": os.pathsep.join(str(DATA / kind) for kind in kinds)},
            capture_output="stdout" not in options,
            text=True,
            timeout=120,
            check=False,
            **options,
        )

    return _process

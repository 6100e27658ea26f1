"""The suites that need an engine run in a process of their own: an engine sets up its process, and cannot undo it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(find_spec("megatron") is None, reason="Megatron-core is not installed")


@pytest.mark.engine
@pytest.mark.slow
def test_the_suite_on_a_real_engine():
    """Failing means what the first failing test of the suite says; its output follows."""
    options = ["-q", "-x", "-W", "ignore", "-p", "no:cacheprovider", "--import-mode=importlib"]
    words = ["-m", "pytest", *options, str(HERE / "suite_contract.py")]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout, done.stdout[-500:]

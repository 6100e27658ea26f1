"""The suites that need an engine run in a process of their own: an engine sets up its process, and cannot undo it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("suite", ["suite_engine.py", "suite_operators.py"])
def test_the_suite_on_a_real_engine(suite):
    """Failing means what the first failing test of the suite says; its output follows."""
    options = ["-q", "-x", "-W", "ignore", "-p", "no:cacheprovider", "--import-mode=importlib"]
    words = ["-m", "pytest", *options, str(HERE / suite)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-500:]

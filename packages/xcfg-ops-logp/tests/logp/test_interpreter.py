"""The Triton kernels without a card: triton_cases.py in a process of its own: the interpreter is set at import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("triton_cases.py")
LEAST = 120
"""Cases that have to pass: a file that collects nothing proves nothing."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kernels_in_the_interpreter():
    """If this fails, a kernel is wrong: values, gradients, special values, or bits across batches."""
    pytest.importorskip("triton", reason="triton has no wheel for this platform")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False, timeout=580
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed.group(1)) >= LEAST, done.stdout

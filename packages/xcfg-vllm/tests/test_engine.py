"""The suites that need an engine run in a process of their own: an engine sets up its process, and cannot undo it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KNOBS = re.findall(r"^def (test_\w+)", (HERE / "suite_knobs.py").read_text(encoding="utf-8"), re.MULTILINE)
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]


def run(target: str) -> None:
    """Run a suite, or one test of it."""
    options = ["-q", "-x", "-W", "ignore", "-p", "no:cacheprovider", "--import-mode=importlib"]
    words = ["-m", "pytest", *options, str(HERE / target)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    allowed = 1 if "contract" in target else 0  # the kit skips what is asked of a replay for the arm that replays not
    skipped = re.search(r"(\d+) skipped", done.stdout)
    assert " passed" in done.stdout and int(skipped[1] if skipped else 0) == allowed, done.stdout[-500:]


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("suite_operators.py", "suite_contract.py")]


@pytest.mark.parametrize("suite", ["suite_engine.py", *SLOW])
def test_the_suite_on_a_real_engine(suite):
    """Failing means what the first failing test of the suite says; its output follows."""
    run(suite)


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOBS)
def test_a_setting_on_a_real_engine(name):
    """Every setting has an engine, hence a process, of its own. Failing means what the test of that name says."""
    run(f"suite_knobs.py::{name}")

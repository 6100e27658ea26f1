from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from xcfg.artifacts.store import Store

DRIVERS = Path(__file__).parent / "drivers"


@pytest.fixture(scope="session")
def sample() -> ModuleType:
    """drivers/sample.py, which the driver processes use too."""
    spec = importlib.util.spec_from_file_location("artifacts_sample", DRIVERS / "sample.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def memory_path(tmp_path):
    """A folder in memory where there is one: thousands of fsyncs, and no power cut to survive."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="xcfg-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def store(memory_path) -> Store:
    return Store(memory_path / "runs", "demo")


@pytest.fixture
def run(store, sample) -> Store:
    """One whole run: two scores, a judged attempt, a failed attempt, an analysis, two revisions."""
    sample.whole_run(store)
    return store


@pytest.fixture(scope="session")
def drive():
    """Run a driver in a process of its own and return the JSON that it prints."""

    def call(name: str, *arguments: object, prefix: tuple[str, ...] = ()) -> dict:
        command = [*prefix, sys.executable, str(DRIVERS / name), *(str(item) for item in arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call


@pytest.fixture(scope="session")
def flip():
    """Flip one bit of the byte at `index` of a file."""

    def call(path: Path, index: int) -> None:
        data = bytearray(path.read_bytes())
        data[index] ^= 1
        path.write_bytes(data)

    return call

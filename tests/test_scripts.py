"""The scripts that a user types first, held against a stand-in for uv: exit codes, arguments, stale locks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UV = """#!/usr/bin/env bash
[[ $1 == --version ]] && { echo "uv ${FAKE_VERSION:-99.0.1} (stand-in)"; exit 0; }
echo "uv $*" >>"$FAKE_LOG"
[[ $1 == run ]] && exit "${FAKE_EXIT:-0}"
exit 0
"""
LOCK = """[[package]]
name = "tokenizers"
source = { registry = "/elsewhere" }

[[package]]
name = "torch"
version = "2.13.0"
source = { registry = "https://index.invalid/simple" }

[[package]]
name = "torch"
version = "2.13.0+cpu"
source = { registry = "FOLDER" }
"""


class Bench:
    """A repository with nothing but the scripts, in a path with a space, and a stand-in for uv."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.bin / "uv").write_text(UV, encoding="utf-8")
        (self.bin / "uv").chmod(0o755)
        self.log = folder / "log"
        self.elsewhere = folder

    def call(self, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(self.elsewhere),
            "FAKE_LOG": str(self.log),
            **extra,
        }
        command = [str(self.root / "scripts" / words[0]), *words[1:]]
        return subprocess.run(
            command, cwd=self.elsewhere, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    @property
    def calls(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines()

    def lock(self, folder: Path | str) -> Path:
        file = self.root / "uv.lock"
        file.write_text(LOCK.replace("FOLDER", str(folder)), encoding="utf-8")
        return file


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 0), (2, 2), (3, 3), (4, 4), (130, 130), (9, 9)])
def test_quickstart_takes_a_mismatch_for_a_finding_and_nothing_else(bench: Bench, code: int, ends: int) -> None:
    """Failing means that a broken run looks like a good one, or the expected finding like a failure."""
    done = bench.call("quickstart", FAKE_EXIT=str(code))
    assert done.returncode == ends, done.stderr
    assert "xcfg run examples/quickstart/experiment.json" in bench.calls[-1]
    assert ("MISMATCH" in done.stderr) == (code == 1)
    assert re.search(rf"\b{code}\b", done.stderr) or code == 130


def test_quickstart_tiny_runs_the_tiny_experiment(bench: Bench) -> None:
    """Failing means that a person in a hurry waits for the whole quickstart."""
    assert bench.call("quickstart", "--tiny", "--json").returncode == 0
    assert bench.calls[-1].endswith("xcfg run examples/quickstart/tiny.json --json")


def test_quickstart_leaves_developer_tools_alone(bench: Bench) -> None:
    """Failing means that the quickstart removes ruff and pytest from an environment that has them."""
    bench.call("quickstart")
    assert any("sync" in call and "--inexact" in call and "--no-dev" in call for call in bench.calls)


def test_test_hands_its_arguments_to_pytest(bench: Bench) -> None:
    """Failing means that `scripts/test -k "a b"` runs something else."""
    done = bench.call("test", "packages/xcfg-core", "-k", "a b", FAKE_EXIT="5")
    assert done.returncode == 5, "pytest's exit code must come through"
    assert bench.calls[-1] == "uv run --no-sync pytest packages/xcfg-core -k a b"


def test_a_lock_from_a_folder_is_dropped_where_the_folder_is_not_used(bench: Bench) -> None:
    """Failing means that a lock made with a CPU build of torch is used on a machine without it."""
    lock = bench.lock(bench.wheels)
    done = bench.call("test")
    assert not lock.exists() and "resolving anew" in done.stderr


def test_a_lock_from_the_index_is_dropped_where_a_folder_has_torch(bench: Bench) -> None:
    """Failing means that gigabytes of CUDA libraries are installed beside a CPU build that lies on disk."""
    (bench.wheels / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    lock = bench.lock("https://index.invalid/simple")
    done = bench.call("test", PIP_FIND_LINKS=str(bench.wheels))
    assert not lock.exists() and "resolving anew" in done.stderr


@pytest.mark.parametrize("variable", ["PIP_FIND_LINKS", "UV_FIND_LINKS"])
def test_a_lock_that_fits_is_kept(bench: Bench, variable: str) -> None:
    """Failing means that every command resolves anew."""
    (bench.wheels / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    lock = bench.lock(bench.wheels)
    done = bench.call("test", **{variable: f"{bench.elsewhere / 'nothing'} {bench.wheels}"})
    assert lock.exists(), done.stderr
    fresh = bench.lock("https://index.invalid/simple")
    bench.call("test")
    assert fresh.exists()


def test_an_old_uv_is_not_used(bench: Bench) -> None:
    """Failing means that a uv which does not know our settings resolves something else."""
    (bench.bin / "python3").write_text("#!/usr/bin/env bash\nexit 1\n", encoding="utf-8")
    (bench.bin / "python3").chmod(0o755)
    done = bench.call("test", FAKE_VERSION="0.4.30")
    assert done.returncode == 2
    assert "python3 has no pip" in done.stderr
    assert not bench.log.exists()

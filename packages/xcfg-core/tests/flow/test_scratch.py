"""Scratch folders: removed at the end, swept after a kill, never while their process lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from xcfg.errors import ExecutionError
from xcfg.flow.scratch import PREFIX, locked_folder, scratch_folder, sweep

HOLD = """
import sys
from xcfg.errors import ExecutionError
from xcfg.flow.scratch import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds a scratch folder below tmp_path; its folder lies at `.folder`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    process.folder = Path(process.stdout.readline().strip())
    yield process
    process.kill()
    process.communicate()


def test_a_folder_in_use_is_left_and_that_of_a_killed_process_is_swept(holder, tmp_path):
    assert holder.folder.parent == tmp_path
    assert sweep(tmp_path) == []
    assert holder.folder.is_dir()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert holder.folder.is_dir()
    assert sweep(tmp_path) == [holder.folder]
    assert not holder.folder.exists()


def test_the_folder_is_removed_at_the_end(holder):
    holder.communicate(timeout=20)
    assert holder.returncode == 0
    assert not holder.folder.exists()


def test_only_what_is_ours_is_swept(tmp_path, monkeypatch):
    kept = [tmp_path / "xcfg-other", tmp_path / f"{PREFIX}without-lock", tmp_path / f"{PREFIX}link"]
    kept[0].mkdir()
    (kept[0] / "lock").touch()
    kept[1].mkdir()
    kept[2].symlink_to(kept[0])
    assert sweep(tmp_path) == []
    assert all(path.exists() for path in kept)
    monkeypatch.setattr("os.getuid", lambda: -1)
    (kept[1] / "lock").touch()
    assert sweep(tmp_path) == []


def test_a_second_journey_of_the_same_process_has_its_own():
    with scratch_folder() as first, scratch_folder() as second:
        assert first != second
        assert first.is_dir()
        assert second.is_dir()


def test_a_folder_that_is_being_made_is_not_swept(tmp_path, monkeypatch):
    """Failing means that a journey which starts may take the folder from another that starts with it."""
    swept, lock = [], fcntl.flock

    def look_first(descriptor, how):
        monkeypatch.setattr("fcntl.flock", lock)
        swept.extend(sweep(tmp_path))
        lock(descriptor, how)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("fcntl.flock", look_first)
    with scratch_folder() as folder:
        assert folder.is_dir() and swept == []
        assert sweep(tmp_path) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(ExecutionError, match="absent") as caught, scratch_folder():
        pass
    assert "TMPDIR" in caught.value.hint


def test_a_file_system_without_locks_gives_a_folder_that_nobody_sweeps(tmp_path, monkeypatch):
    """Failing means that a matrix cannot run below such a root, or takes the folder of another that is at work."""
    monkeypatch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(38, "Function not implemented")))
    with contextlib.ExitStack() as stack:
        folder = locked_folder(stack, tmp_path, "made-")
        monkeypatch.undo()
        assert folder.is_dir() and sweep(tmp_path, "made-") == []
    assert list(tmp_path.iterdir()) == []

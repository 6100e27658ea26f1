"""A full disk ends a run with clear words, and spoils nothing that was sealed before."""

from __future__ import annotations

import contextlib
import shutil
import subprocess

import pytest
from xcfg.artifacts.store import Store
from xcfg.errors import ExecutionError

SIZE = 256 * 1024


def check(result: dict) -> None:
    assert result["wrong"] == []
    full = [message for message in result["messages"] if message]
    assert len(full) >= 5, "the disk was never full: this test tested nothing"
    assert "" in result["messages"], "the disk was always full: nothing was tried behind the first steps"
    for message in full:
        assert message.startswith("the disk is full: ")
        assert "Free space or raise the quota" in message


def test_a_full_file_system_at_every_level(tmp_path, drive):
    mount = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount -t tmpfs -o size={SIZE} tmpfs "{tmp_path}" && exec "$@"',
        "sh",
    )
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root and unshare; the next test needs neither")
    check(drive("disk.py", tmp_path, SIZE, prefix=mount))


def test_a_limit_on_file_sizes_at_every_level(memory_path, drive):
    check(drive("disk.py", memory_path, 0))


@pytest.mark.parametrize("boundary", ["open", "write", "fsync", "link", "rename", "mkdir"])
def test_an_interrupt_at_any_step_leaves_no_temporary_folder(store, sample, boundary):
    def stop(name: str) -> None:
        nonlocal left
        left -= name.startswith(boundary)
        if left < 0 and name.startswith(boundary):
            raise KeyboardInterrupt

    for nth in range(4):
        left = nth
        with contextlib.suppress(KeyboardInterrupt):
            sample.whole_run(Store(store.folder.parent, "demo", on_boundary=stop))
        assert list(store.folder.rglob(".tmp-*")) == []
    left = 1 << 30
    sample.whole_run(store)
    assert sample.is_whole(store)


def test_other_refusals_of_the_disk_are_named_too(store, sample):
    def refuse(name: str) -> None:
        if name.startswith("fsync score.pt"):
            raise OSError(5, "Input/output error", name)

    sample.open_demo(store)
    with pytest.raises(ExecutionError, match="Input/output error") as caught:
        sample.put_scores(Store(store.folder.parent, "demo", on_boundary=refuse))
    assert caught.value.exit_code == 4
    assert store.score_keys() == ()

"""The folder for exchange and logs of one journey, outside the store; a killed journey's is swept by the next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "xcfg-scratch-"
LOCK = "lock"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder below the system's temporary folder and remove it at the end.

    Its lock is held while this process lives, whatever ends it, so that nobody sweeps a folder in use.
    """
    sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        unseen = Path(name) / f"{LOCK}.new"
        descriptor = os.open(unseen, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            unseen.rename(Path(name) / LOCK)  # a sweep between making and locking would remove the folder
            yield Path(name)
        finally:
            os.close(descriptor)


def sweep(parent: Path) -> list[Path]:
    """Remove and return this user's scratch folders whose process has ended. What cannot be removed stays."""
    removed = []
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
            finally:
                os.close(descriptor)
    return removed

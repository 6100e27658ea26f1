"""Folders of one journey outside the store: exchange and logs, captured logits; a killed one's is swept by the next."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from xcfg.errors import ExecutionError

PREFIX = "xcfg-scratch-"
LOCK = "lock"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder below the system's temporary folder and remove it at the end.

    Its lock is held while this process lives, whatever ends it, so that nobody sweeps a folder in use. Raises
    ExecutionError where no folder can be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = locked_folder(stack, Path(tempfile.gettempdir()), PREFIX)
        except OSError as error:
            raise ExecutionError(
                f"no temporary folder for engines can be made: {error}",
                hint="Set TMPDIR to a folder where you may write and that has space.",
            ) from error
        yield folder


def locked_folder(stack: contextlib.ExitStack, parent: Path, prefix: str) -> Path:
    """Make a folder in `parent` that is removed with `stack`; remove those with this prefix whose process has ended.

    Its lock bears its name only once it is held. Where the file system has no locks the folder goes without, and
    nobody sweeps it. Raises OSError.
    """
    sweep(parent, prefix)
    made = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
    folder = Path(stack.enter_context(made))
    making = folder / f"{LOCK}-"
    descriptor = os.open(making, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, descriptor)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        making.rename(folder / LOCK)
    return folder


def sweep(parent: Path, prefix: str = PREFIX) -> list[Path]:
    """Remove and return this user's folders of that prefix whose process has ended. What cannot be removed stays."""
    removed = []
    for folder in parent.glob(f"{prefix}*"):
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

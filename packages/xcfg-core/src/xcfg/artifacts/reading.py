"""Opening what was stored, without trusting a name: no link is followed, nothing blocks, sizes are bounded.

Folders are opened part by part relative to an open descriptor, so that what was checked is what is read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xcfg.errors import ArtifactError

MAX_JSON = 512 * 1024 * 1024
MAX_PAYLOAD = 256 * 1024**3
MAX_ENTRIES = 1 << 16
_CHUNK = 4 * 1024 * 1024
_SETTLED_NS = 2_000_000_000
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def kind_of(mode: int) -> str:
    """Return what a file mode says it is, in words."""
    for test, word in (
        (stat.S_ISREG, "a regular file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(mode):
            return word
    return "a device"


@contextmanager
def opened(base: Path, *parts: str) -> Iterator[int]:
    """Yield a descriptor of the folder base/parts; `base` may be a link, a part (ArtifactError) may not."""
    current = _open_folder(str(base), None, follow=True)
    try:
        for part in parts:
            deeper = _open_folder(part, current)
            os.close(current)
            current = deeper
        yield current
    finally:
        os.close(current)


def _open_folder(name: str, parent: int | None, *, follow: bool = False) -> int:
    flags = _FOLDER_FLAGS & ~os.O_NOFOLLOW if follow else _FOLDER_FLAGS
    try:
        return os.open(name, flags, dir_fd=parent)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{name!r} cannot be opened: {_why(name, parent, error)}") from None


def _why(name: str, parent: int | None, error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
        try:
            return f"it is {kind_of(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)}"
        except OSError:
            pass
    return error.strerror or type(error).__name__


def open_regular(name: str, *, parent: int | None = None, limit: int = MAX_PAYLOAD) -> int:
    """Return a descriptor of the regular file `name`, of at most `limit` bytes; ArtifactError otherwise.

    A link, FIFO, socket or device is refused before it is opened, and again after.
    """
    try:
        _check_regular(name, os.stat(name, dir_fd=parent, follow_symlinks=False), limit)
        descriptor = os.open(name, _FILE_FLAGS, dir_fd=parent)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{name!r} cannot be read: {_why(name, parent, error)}") from None
    try:
        _check_regular(name, os.fstat(descriptor), limit)
    except ArtifactError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(name: str, facts: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise ArtifactError(f"{name!r} is {kind_of(facts.st_mode)}, not a regular file")
    if facts.st_size > limit:
        raise ArtifactError(f"{name!r} has {facts.st_size} bytes, more than {limit}")


def read_bounded(name: str, *, parent: int | None = None, limit: int = MAX_JSON) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes; ArtifactError otherwise."""
    with os.fdopen(open_regular(name, parent=parent, limit=limit), "rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise ArtifactError(f"{name!r} grew beyond {limit} bytes while it was read")
    return data


def entries(folder: int) -> list[str]:
    """Return the names in an open folder, sorted; ArtifactError when there are more than MAX_ENTRIES."""
    names = sorted(os.listdir(folder))
    if len(names) > MAX_ENTRIES:
        raise ArtifactError(f"the folder has {len(names)} entries, more than {MAX_ENTRIES}")
    return names


def listing(base: Path, *parts: str) -> list[str]:
    """Return the names in the folder base/parts, sorted; empty when it does not exist."""
    if not os.path.lexists(base.joinpath(*parts)):
        return []
    with opened(base, *parts) as folder:
        return sorted(os.listdir(folder))


class Digests:
    """SHA-256 of files. A file seen before under the same inode, size and change time is not read again.

    Side scores are hard-linked into the cases that use them, so that an N x M grid is hashed as N + M files.
    A file that changed within the last two seconds is never remembered: its change time could not tell.
    """

    def __init__(self) -> None:
        """Start without memory."""
        self._known: dict[tuple[int, int, int, int, int], str] = {}

    def of(self, name: str, *, parent: int | None = None) -> str:
        """Return the SHA-256 of the regular file `name`; ArtifactError when it is none."""
        descriptor = open_regular(name, parent=parent)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            before = _stamp(os.fstat(descriptor))
            if before in self._known:
                return self._known[before]
            hasher = hashlib.sha256()
            buffer = bytearray(_CHUNK)
            while count := stream.readinto(buffer):
                hasher.update(memoryview(buffer)[:count])
            settled = time.time_ns() - before[4] > _SETTLED_NS
            if settled and _stamp(os.fstat(descriptor)) == before:
                self._known[before] = hasher.hexdigest()
            return hasher.hexdigest()


def _stamp(facts: os.stat_result) -> tuple[int, int, int, int, int]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns

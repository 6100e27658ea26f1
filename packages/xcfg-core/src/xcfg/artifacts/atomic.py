"""Publishing: whole or not at all, never over something that is there.

Everything is written under a temporary name in the folder where it will stand, each file and then the folder
is fsynced, and one rename that refuses an existing name makes it visible; the parent is fsynced last. A
process that is killed at any point leaves a `.tmp-` entry at worst.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from xcfg.artifacts.layout import TEMPORARY
from xcfg.artifacts.reading import open_regular
from xcfg.errors import ArtifactError, ExecutionError

CHUNK = 4 * 1024 * 1024
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR}
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS}


@contextmanager
def disk_errors(what: Path) -> Iterator[None]:
    """Turn an OSError while writing below `what` into an ExecutionError that says what to do."""
    try:
        yield
    except OSError as error:
        name = error.filename or str(what)
        if error.errno in _FULL:
            raise ExecutionError(
                f"the disk is full: {str(name)!r} could not be written ({error.strerror})",
                hint="What was sealed is intact. Free space or raise the quota, then run again: it resumes.",
            ) from error
        raise ExecutionError(
            f"{str(name)!r} could not be written: {error.strerror}",
            hint="Check permissions and the file system of the output root (--output-root).",
        ) from error


def rename_new(source: Path, target: Path) -> bool:
    """Rename `source` to `target` unless that name is taken; return whether it was renamed.

    Uses renameat2(RENAME_NOREPLACE) where kernel and file system have it. Elsewhere a folder is renamed with
    rename(2), which refuses a non-empty folder, and a file is hard-linked, which refuses any existing name.
    """
    code = _renameat2(source, target)
    if code is None:
        return _rename_portable(source, target)
    if code in _TAKEN and os.path.lexists(target):
        return False
    if code:
        raise OSError(code, os.strerror(code), str(target))
    return True


def _renameat2(source: Path, target: Path) -> int | None:
    """Return 0 or the errno; None when the call or its flag is not supported here."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return None
    done = call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE)
    if done == 0:
        return 0
    code = ctypes.get_errno()
    return None if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP) else code


def _rename_portable(source: Path, target: Path) -> bool:
    try:
        if source.is_dir():
            os.rename(source, target)
        else:
            os.link(source, target, follow_symlinks=False)
            source.unlink()
    except OSError as error:
        if error.errno in _TAKEN and os.path.lexists(target):
            return False
        raise
    return True


class Writer:
    """The write side of one store. `on_boundary(name)` is called after every step that reaches the disk."""

    def __init__(self, on_boundary: Callable[[str], None] | None = None) -> None:
        """Keep the observer; a fault test kills the process in it."""
        self._boundary = on_boundary or (lambda name: None)

    def ensure_folder(self, base: Path, *parts: str) -> Path:
        """Make `base` and the folders `parts` below it; ArtifactError when one is no real folder."""
        with disk_errors(base):
            for missing in reversed([path for path in (base, *base.parents) if not path.exists()]):
                self._make(missing)
            folder = base
            for part in parts:
                folder = folder / part
                self._make(folder)
        return folder

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir()
        except FileExistsError:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise ArtifactError(
                    f"{str(folder)!r} is not a real folder",
                    hint="Move it away: the store follows no symbolic link and overwrites nothing.",
                ) from None
            return
        self._boundary(f"mkdir {folder.name}")
        self.sync_folder(folder.parent)

    @contextmanager
    def temporary(self, parent: Path, name: str) -> Iterator[Path]:
        """Yield a new empty folder `.tmp-<name>-...` in `parent`; what was not renamed away is removed."""
        folder = parent / f"{TEMPORARY}{name[:64]}-{os.getpid()}-{secrets.token_hex(6)}"
        with disk_errors(parent):
            try:
                folder.mkdir()
                self._boundary("mkdir temporary")
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def write(self, target: Path, content: bytes | Path) -> str:
        """Write bytes, or copy a file, to the new read-only file `target`; fsync it; return its SHA-256."""
        hasher = hashlib.sha256()
        with target.open("xb", buffering=0) as stream:
            self._boundary(f"open {target.name}")
            for chunk in _chunks(content):
                hasher.update(chunk)
                view = memoryview(chunk)
                while view:
                    view = view[stream.write(view) :]
                self._boundary(f"write {target.name}")
            with suppress(OSError):  # a hint to people and editors; some file systems have no modes
                os.fchmod(stream.fileno(), stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & ~0o222)
            os.fsync(stream.fileno())
        self._boundary(f"fsync {target.name}")
        return hasher.hexdigest()

    def link(self, source: Path, target: Path) -> None:
        """Make `target` a hard link of `source`, or a copy where that is impossible."""
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            self.write(target, source)
            return
        self._boundary(f"link {target.name}")

    def sync_folder(self, folder: Path) -> None:
        """Flush a folder, so that the names in it survive a crash."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(_Unsyncable):
                _fsync(descriptor)
        finally:
            os.close(descriptor)
        self._boundary(f"fsync folder {_generic(folder.name)}")

    def publish(self, temporary: Path, target: Path) -> bool:
        """Rename without overwriting, then fsync the parent; return False when the name is taken."""
        if not rename_new(temporary, target):
            return False
        self._boundary(f"rename {target.name}")
        self.sync_folder(target.parent)
        return True

    def publish_file(self, target: Path, data: bytes) -> bool:
        """Publish one file with `data` under the name `target`; return False when the name is taken."""
        with self.temporary(target.parent, target.name) as folder:
            self.write(folder / "file", data)
            return self.publish(folder / "file", target)


class _Unsyncable(OSError):
    """A file system that has no fsync for folders."""


def _fsync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            raise _Unsyncable(error.errno, error.strerror) from error
        raise


def _generic(name: str) -> str:
    return "temporary" if name.startswith(TEMPORARY) else name


def _chunks(content: bytes | Path) -> Iterator[bytes | memoryview]:
    if isinstance(content, bytes):
        view = memoryview(content)
        for start in range(0, len(view), CHUNK):
            yield view[start : start + CHUNK]
        return
    descriptor = open_regular(str(content))
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK):
            yield chunk

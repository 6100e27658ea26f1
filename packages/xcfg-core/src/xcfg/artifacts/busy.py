"""Which runs are at work on one experiment right now, and on what: said, never waited for.

Each run keeps one file `.tmp-run-<pid>-<random>` in the experiment's folder, locked while its process lives and removed
at its end. Whoever can take the lock knows that the run is dead, whatever ended it, and removes the file. It is no
evidence: nothing of a result depends on it, and where the file system has no locks runs merely do not see each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from xcfg.artifacts.layout import TEMPORARY
from xcfg.errors import ConfigError
from xcfg.schema.codec import convert, parse_strict

PREFIX = f"{TEMPORARY}run-"
_LARGEST = 4096
_LARGEST_PID = 2**31 - 1


class OtherRun(NamedTuple):
    """A run that is alive. pid: on its machine. started: UTC. key, label: the side score it is at, empty before one."""

    pid: int
    started: str
    key: str = ""
    label: str = ""

    @property
    def described(self) -> str:
        """Which run it is and what it does, in words."""
        doing = f"is scoring {self.label!r}" if self.label else "has begun"
        return f"process {self.pid}, started {self.started}, {doing}"


class Busy:
    """The sign of one run on its experiment's folder, and the view of the others'. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Nothing is written before `with`."""
        self._folder = folder
        self._path = folder / f"{PREFIX}{os.getpid()}-{secrets.token_hex(6)}"
        self._descriptor: int | None = None
        self._started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    def __enter__(self) -> Busy:
        """Put up the sign; without it where it cannot be written or locked."""
        making = self._path.with_name(self._path.name.replace(PREFIX, f"{TEMPORARY}sign-"))
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(making, flags, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.at("", "")
            making.rename(self._path)  # seen only once it is locked and says something
        except OSError:
            with contextlib.suppress(OSError):
                making.unlink()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the sign down."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None

    def at(self, key: str, label: str) -> None:
        """Say which side score this run is at."""
        if self._descriptor is None:
            return
        said = {"pid": os.getpid(), "started": self._started, "key": key, "label": label[:512]}
        with contextlib.suppress(OSError):
            data = json.dumps(said).encode()
            os.pwrite(self._descriptor, data.ljust(_LARGEST), 0)  # one length, so that no reader sees two signs mixed

    def others(self) -> tuple[OtherRun, ...]:
        """Return the other runs that are alive, oldest first; the signs of dead ones are removed."""
        found = []
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.glob(f"{PREFIX}*")):
                if path != self._path and (other := _look(path)) is not None:
                    found.append(other)
        return tuple(sorted(found, key=lambda other: (other.started, other.pid)))


def _look(path: Path) -> OtherRun | None:
    """Return the run behind a sign; None where it is dead (then its sign is removed) or says nothing readable."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(os.pread(descriptor, _LARGEST, 0))
        path.unlink(missing_ok=True)
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return None


def _read(data: bytes) -> OtherRun | None:
    """Return what a sign says; None for whatever no run has written: anybody may put a file there and lock it."""
    try:
        said = convert(parse_strict(data), dict[str, int | str])
        pid, texts = said["pid"], [said["started"], said["key"], said["label"]]
    except (ConfigError, KeyError):
        return None
    if not isinstance(pid, int) or not 0 < pid <= _LARGEST_PID or not all(isinstance(text, str) for text in texts):
        return None
    return OtherRun(pid, *map(str, texts))

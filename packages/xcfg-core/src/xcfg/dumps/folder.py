"""A folder given as a dump: which of its files are read, and which are not and why."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol, runtime_checkable

from xcfg.errors import ArtifactError

SHOWN = 4


@dataclass(frozen=True)
class Folder:
    """files: what is read, in that order. left: names that are not, `/` after a folder's. patterns: what decides.

    remark: one more sentence about the folder, for people.
    """

    files: tuple[Path, ...]
    left: tuple[str, ...]
    patterns: tuple[str, ...]
    remark: str = ""

    def describe(self, *, redacted: bool = False) -> str:
        """Return one sentence: how many files were read, and what was left out and why."""
        wanted = " or ".join(self.patterns)
        read = f"files read {len(self.files)}"
        left = f"left out {len(self.left)}" if self.left else "none left out"
        if not redacted:
            read += f" ({_some([file.name for file in self.files])})"
            left += f" ({_some(list(self.left))}: not {wanted})" if self.left else ""
        return "; ".join([f"of the folder: {read}", left, *([self.remark] if self.remark else [])])


@runtime_checkable
class FolderReader(Protocol):
    """A reader that takes folders."""

    def folder(self, path: Path) -> Folder:
        """Return what it reads of the folder `path`; `list_folder` makes it from name patterns."""
        ...


def list_folder(path: Path, patterns: tuple[str, ...], *, markers: tuple[str, ...] = (), remark: str = "") -> Folder:
    """Return the files of `path` whose names fit a pattern, sorted, and all other entries as left out.

    markers: names that belong to the dump and hold no data. Raises ArtifactError when `path` cannot be listed.
    """
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be listed: {error.strerror}") from None
    chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    files = tuple(path / name for name in chosen if (path / name).is_file())
    taken = {file.name for file in files} | set(markers)
    left = tuple(f"{name}/" if (path / name).is_dir() else name for name in names if name not in taken)
    return Folder(files, left, patterns, remark)


def survey(reader: object, path: Path) -> Folder | None:
    """Return what `reader` reads of the folder `path`, or None when it does not say.

    Raises ArtifactError when one of the files is empty: it would be a part of the dump that nobody misses.
    """
    if not isinstance(reader, FolderReader):
        return None
    found = reader.folder(path)
    for file in found.files:
        if not file.stat().st_size:
            raise ArtifactError(
                f"{str(file)!r} is empty: 0 bytes",
                hint="A part of the dump is missing. Write it again, or take the file out of the folder.",
            )
    return found


def _some(names: list[str]) -> str:
    shown = ", ".join(f"{name!r:.60}" for name in names[:SHOWN])
    return shown + (", …" if len(names) > SHOWN else "")

"""What is wrong with a file that cannot be read as a dump, from its first and last bytes and never from its name.

Asked where no reader recognises a file, or where the one that does stumbles. It knows containers (zip,
safetensors, Parquet, compressed files, text encodings, JSON) and nothing of what a framework puts into them.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from xcfg.errors import ConfigError
from xcfg.schema.codec import parse_strict

PEEK = 1 << 12
TAIL = 1 << 24
"""Bytes at the end in which the last line is looked for."""
DOCUMENT = 1 << 26
"""Bytes of the longest document over several lines whose brackets are counted."""
LARGEST_HEADER = 1 << 24
SHOWN = 5
AGAIN = "Write or copy it again: what is missing cannot be made up."
COMPRESSED = (
    (b"\x1f\x8b", "gzip", "gzip -dc"),
    (b"\x28\xb5\x2f\xfd", "Zstandard", "zstd -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"\xfd7zXZ\x00", "xz", "xz -dc"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc"),
)
"""First bytes, name, and the command that unpacks to standard output."""
ENCODINGS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
OTHERS = (
    (b"version https://git-lfs.github.com/spec/", "is a pointer of Git LFS, not the file", "Fetch it: git lfs pull."),
    (b"<!DOCTYPE html", "is a web page", "Was it downloaded without signing in?"),
    (b"<html", "is a web page", "Was it downloaded without signing in?"),
    (b"ARROW1", "is an Arrow file", "Write its columns as Parquet or JSON lines."),
    (b"\x89HDF\r\n\x1a\n", "is an HDF5 file", "Write its columns as npz or JSON lines."),
    (b"\x93NUMPY", "is one .npy array", "Write the columns together: numpy.savez(file, sample_id=…, position=…, …)."),
)
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


@dataclass(frozen=True)
class Damage:
    """what: the rest of a sentence that begins with the file. hint: what to do."""

    what: str
    hint: str


def damage(path: Path) -> Damage | None:
    """Return what is wrong with the file or folder at `path`, or None when nothing shows."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _folder(path)
        if not stat.S_ISREG(mode):
            return Damage(
                "is a pipe or a device, and a dump is opened more than once",
                "Write it to a file first, or name its reader with --format NAME.",
            )
        with path.open("rb") as stream:
            return _file(stream, path)
    except OSError as error:
        return Damage(f"cannot be read: {error.strerror}", "Look at its permissions and at the disk.")


def is_special(path: Path) -> bool:
    """Whether `path` is neither a file nor a folder: recognising it would use up what it has to say."""
    try:
        return not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()
    except OSError:
        return False


def _folder(path: Path) -> Damage:
    names = sorted(os.listdir(path))
    if not names:
        return Damage("is an empty folder", "Give a file, or a folder that holds the files of one dump.")
    return Damage(
        f"is a folder that no reader knows as a dump; it holds {_some(names)}",
        "Give one of its files, or the folder in which the files of one dump lie side by side.",
    )


def _file(stream: BinaryIO, path: Path) -> Damage | None:
    head = stream.read(PEEK)
    total = os.fstat(stream.fileno()).st_size
    quoted = shlex.quote(str(path))
    if not head:
        return Damage("is empty: 0 bytes", "The writer made it and wrote nothing, or was stopped before.")
    for magic, name, command in COMPRESSED:
        if head.startswith(magic):
            return Damage(f"is compressed ({name})", f"Unpack it first: {command} {quoted} > NEW")
    for magic, what, hint in OTHERS:
        if head.startswith(magic):
            return Damage(what, hint)
    if not any(head):
        return Damage(f"begins with {len(head)} zero bytes", f"Its space was reserved and never written. {AGAIN}")
    return _encoding(head, quoted) or _container(stream, head, total, path) or _json(stream, head, total, quoted)


def _encoding(head: bytes, quoted: str) -> Damage | None:
    found = next((name for magic, name in ENCODINGS if head.startswith(magic)), "")
    if not found and len(head) >= 16:
        for name, text, zeros in (("UTF-16LE", head[:16:2], head[1:16:2]), ("UTF-16BE", head[1:16:2], head[:16:2])):
            found = name if all(text) and not any(zeros) else found
    if found:
        return Damage(f"is text in {found}", f"Turn it into UTF-8: iconv -f {found} -t UTF-8 {quoted} > NEW")
    if head.startswith(b"\xef\xbb\xbf"):
        return Damage("begins with a byte order mark, which JSON has not", f"Cut it off: tail -c +4 {quoted} > NEW")
    if head[257:262] == b"ustar":
        return Damage("is a tar archive", f"Unpack it and give what is in it: tar -xf {quoted}")
    return None


def _container(stream: BinaryIO, head: bytes, total: int, path: Path) -> Damage | None:
    if head.startswith(b"PK\x03\x04"):
        return _zip(stream, total, path)
    if head.startswith(b"PAR1"):
        stream.seek(max(0, total - 4))
        if total < 12 or stream.read(4) != b"PAR1":
            return _cut("a Parquet file", total, "the footer that Parquet ends with is missing")
        return None
    size = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and 2 <= size <= LARGEST_HEADER:
        return _safetensors(stream, size, total)
    return None


def _cut(kind: str, total: int, why: str) -> Damage:
    return Damage(f"looks like {kind} that was cut off: {total} bytes, {why}", AGAIN)


def _safetensors(stream: BinaryIO, size: int, total: int) -> Damage | None:
    if total < 8 + size:
        return _cut("a safetensors file", total, f"its header alone ends at {8 + size}")
    stream.seek(8)
    try:
        header = parse_strict(stream.read(size))
        needed = 8 + size + max(item["data_offsets"][1] for name, item in header.items() if name != "__metadata__")
    except (ConfigError, LookupError, TypeError, ValueError, AttributeError):
        return None
    return _cut("a safetensors file", total, f"its header says {needed}") if total < needed else None


def _zip(stream: BinaryIO, total: int, path: Path) -> Damage | None:
    if not zipfile.is_zipfile(stream):
        return _cut("a zip archive (.pt, .npz)", total, _reach(stream, total))
    try:
        with zipfile.ZipFile(stream) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError) as error:
        return Damage(f"looks like a zip archive with a damaged directory: {error}", AGAIN)
    if any(name.endswith((".npy", "data.pkl")) for name in names):
        return None
    return Damage(
        f"is a zip archive that holds {_some(names)}",
        f"Unpack it and give what is in it: unzip {shlex.quote(str(path))}",
    )


def _reach(stream: BinaryIO, total: int) -> str:
    """Return how far the members of a zip archive without a directory reach, as far as their headers say."""
    at = 0
    while at + 30 <= total:
        stream.seek(at)
        header = stream.read(30)
        if header[:4] != b"PK\x03\x04":
            break
        flags, _, _, _, _, size, _, named, more = struct.unpack("<HHHHIIIHH", header[6:30])
        name = stream.read(named)
        extra = stream.read(more)
        if size == 0xFFFFFFFF and len(extra) >= 20 and extra[:2] == b"\x01\x00":
            size = int.from_bytes(extra[12:20], "little")
        if len(extra) < more or size == 0xFFFFFFFF or (flags & 8 and not size):
            break  # the size is cut off, or stands after the content
        end = at + 30 + named + more + size
        if end > total:
            return f"the header of its member {name.decode('utf-8', 'replace')!r:.80} says {end}"
        at = end
    return "the directory that zip ends with is missing"


def _json(stream: BinaryIO, head: bytes, total: int, quoted: str) -> Damage | None:
    """Return that the last record is half a record: brackets or a text in it stay open."""
    if head.lstrip()[:1] not in (b"{", b"[") and not head.startswith(b"data:"):
        return None
    start = max(0, total - TAIL)
    stream.seek(start)
    tail = stream.read(TAIL)
    if tail.endswith(b"\n"):
        last, begin = b"", total
    else:
        begin = start + tail.rfind(b"\n") + 1
        last = tail[begin - start :].removeprefix(b"data:").lstrip()
    if begin == start > 0:
        return None
    if begin and last[:1] == b"{" and _open(last):
        return Damage(
            f"was cut off: its last line, which begins at byte {begin} of {total}, is half a record",
            f"Write it again, or leave that line out: sed '$d' {quoted} > NEW",
        )
    stream.seek(0)
    first = stream.readline(DOCUMENT)
    if total <= DOCUMENT and _open(first) and _open(first + stream.read(DOCUMENT)):
        return Damage(f"was cut off: {total} bytes of JSON whose brackets stay open", AGAIN)
    return None


def _open(text: bytes) -> bool:
    rest = _TEXT.sub(b"", text)
    return b'"' in rest or rest.count(b"{") + rest.count(b"[") > rest.count(b"}") + rest.count(b"]")


def _some(names: list[str]) -> str:
    shown = ", ".join(f"{name!r:.60}" for name in names[:SHOWN])
    return f"{len(names)} entries: {shown}" + (", …" if len(names) > SHOWN else "")

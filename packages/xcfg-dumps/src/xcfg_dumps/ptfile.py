"""`.pt` archives of torch.save, read through a memory map: the pickle by our own machine, tensors by numpy.

Before anything is read the archive must be what torch writes: members that are stored, not compressed, do not
overlap and lie within the file. torch itself is not needed.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.errors import ArtifactError

from xcfg_dumps import pickled
from xcfg_dumps.plain import ArrayRef, Numbers, TensorRef, Text

MAX_MEMBERS = 4_000_000
_MALFORMED = (zipfile.BadZipFile, struct.error, EOFError, LookupError, NotImplementedError, RuntimeError, ValueError)


@dataclass(frozen=True)
class PtFile:
    """An open archive: its bytes, and for each member (without the archive's prefix) where its bytes lie."""

    where: str
    buffer: mmap.mmap
    members: dict[str, tuple[int, int]]

    def head(self, size: int = 1 << 16) -> bytes:
        """Return the first bytes of the pickle, to recognise a layout without reading the file."""
        start, length = self.members["data.pkl"]
        return bytes(self.buffer[start : start + min(size, length)])

    def load(self) -> Any:
        """Return what was saved: dicts, `Numbers`, tuples, plain values, and references for `array`."""
        start, length = self.members["data.pkl"]
        return pickled.load(self.buffer, start, start + length, self.where)

    def array(self, value: Any) -> NDArray[Any] | None:
        """Return a list, tuple, tensor or array of numbers as an array; None for anything else.

        A tensor is a view into the file; bfloat16 becomes float32. Raises ArtifactError when it lies outside.
        """
        if isinstance(value, Numbers):
            return value.array()
        if isinstance(value, tuple):
            return Numbers(value).array()
        if isinstance(value, TensorRef):
            return self._tensor(value)
        if isinstance(value, ArrayRef):
            return self._numpy(value)
        return None

    def _tensor(self, ref: TensorRef) -> NDArray[Any]:
        start, length = self.members.get(f"data/{ref.key}", (0, -1))
        stored = np.dtype("uint16" if ref.dtype == "bfloat16" else ref.dtype)
        items = int(np.prod(ref.shape, dtype=object)) if ref.shape else 1
        last = ref.offset + sum((size - 1) * step for size, step in zip(ref.shape, ref.strides, strict=False))
        inside = min((*ref.shape, *ref.strides, ref.offset, ref.numel)) >= 0 and len(ref.shape) == len(ref.strides)
        if not inside or ref.numel * stored.itemsize > length or items > ref.numel or (items and last >= ref.numel):
            raise ArtifactError(f"{self.where}: a tensor of shape {ref.shape} lies outside its storage")
        flat = np.frombuffer(self.buffer, dtype=stored, count=ref.numel, offset=start) if ref.numel else None
        if flat is None or items == 0:
            return np.zeros(ref.shape, dtype="float32" if ref.dtype == "bfloat16" else stored)
        steps = tuple(step * stored.itemsize for step in ref.strides)
        view: NDArray[Any] = np.lib.stride_tricks.as_strided(flat[ref.offset :], ref.shape, steps, writeable=False)
        if ref.dtype == "bfloat16":
            return (view.astype(np.uint32) << 16).view(np.float32)
        return view

    def _numpy(self, ref: ArrayRef) -> NDArray[Any] | None:
        data = ref.data
        if isinstance(data, Text):
            data = bytes(self.buffer[data.start : data.start + data.size]).decode("utf-8").encode("latin1")
        try:
            dtype = np.dtype(ref.dtype)
        except TypeError:
            return None
        if data is None or dtype.kind not in "biuf":
            return None
        if int(np.prod(ref.shape, dtype=object)) * dtype.itemsize != len(data):
            raise ArtifactError(f"{self.where}: an array of shape {ref.shape} has {len(data)} bytes")
        return np.frombuffer(data, dtype=dtype).reshape(ref.shape)


def open_pt(path: Path) -> PtFile:
    """Return the archive at `path`. Raises ArtifactError when it is no regular file or not as torch writes it."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            raise ArtifactError(f"{str(path)!r} is empty or no regular file")
        try:
            buffer = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            with zipfile.ZipFile(stream) as archive:
                members = _members(str(path), buffer, archive)
        except _MALFORMED as error:
            raise ArtifactError(
                f"{str(path)!r} is no .pt archive: {error}", hint="It may be truncated, or a bare pickle."
            ) from None
    return PtFile(str(path), buffer, members)


def is_pt(path: Path) -> bool:
    """Whether the file starts like a zip archive and holds a data.pkl."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == b"PK\x03\x04" and "data.pkl" in open_pt(path).members
    except (OSError, ArtifactError):
        return False


def _members(where: str, buffer: mmap.mmap, archive: zipfile.ZipFile) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS or sum(info.file_size for info in infos) > len(buffer):
        raise ArtifactError(f"{where} has overlapping members, or more than {MAX_MEMBERS}")
    prefix = infos[0].filename.partition("/")[0] + "/" if infos else ""
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ArtifactError(f"{where}: the member {info.filename[:80]!r} is compressed; torch compresses none")
        start = info.header_offset
        if buffer[start : start + 4] != b"PK\x03\x04":
            raise ArtifactError(f"{where}: the member {info.filename[:80]!r} has no header")
        name, extra = struct.unpack("<HH", buffer[start + 26 : start + 30])
        begin = start + 30 + name + extra
        if begin + info.file_size > len(buffer):
            raise ArtifactError(f"{where} is truncated: the member {info.filename[:80]!r} lies outside the file")
        found[info.filename.removeprefix(prefix)] = (begin, info.file_size)
    if "data.pkl" not in found:
        raise ArtifactError(f"{where} is a zip archive without data.pkl, which torch.save writes")
    order = found.get("byteorder")
    if order and bytes(buffer[order[0] : order[0] + order[1]]) != b"little":
        raise ArtifactError(f"{where} was written on a big-endian machine")
    return found

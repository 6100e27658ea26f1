"""npz: the canonical columns as numpy arrays, one member per column, read in slices and never unpickled.

Layout: numpy's .npy format 1.0 to 3.0 inside a zip archive (numpy.lib.format), as numpy.savez and
numpy.savez_compressed write it. Text ids are arrays of fixed width; arrays of objects are pickles and refused.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from xcfg.dumps import OPTIONAL, REQUIRED, is_canonical
from xcfg.errors import ArtifactError

ROWS = 1 << 18
MAX_MEMBERS = 1000
MAGIC = b"\x93NUMPY"
LONGEST = 4096
"""Bytes of a header, and of one value: an id of text takes four per letter."""
HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z][0-9]{0,8})', 'fortran_order': (?:True|False), 'shape': \(([0-9, ]*)\),? ?\}\s*"
)
_MALFORMED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, RuntimeError, ValueError)


class NpzReader:
    """Reads canonical npz."""

    def detect(self, path: Path) -> str:
        """Return why the file is a canonical npz: the names of its members."""
        try:
            if not zipfile.is_zipfile(path):
                return ""
            with zipfile.ZipFile(path) as archive:
                names = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
        except _MALFORMED:
            return ""
        return "an npz archive with the canonical columns" if is_canonical(names) else ""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches of at most 262,144 rows, in the stored dtypes. Raises ArtifactError."""
        try:
            with zipfile.ZipFile(path) as archive:
                yield from _slices(archive, path.name)
        except _MALFORMED as error:
            raise ArtifactError(f"{str(path)!r} is no readable npz: {error}") from None


def _slices(archive: zipfile.ZipFile, where: str) -> Iterator[dict[str, Any]]:
    infos = archive.infolist()
    wanted = {info.filename.removesuffix(".npy"): info for info in infos if info.filename.endswith(".npy")}
    if len(infos) > MAX_MEMBERS or len(wanted) != len(infos):
        raise ArtifactError(f"{where} is no npz: a member is no .npy array, or there are more than {MAX_MEMBERS}")
    known = {name: info for name, info in wanted.items() if name in REQUIRED or name in OPTIONAL}
    with ExitStack() as stack:
        streams = {name: stack.enter_context(archive.open(info)) for name, info in known.items()}
        headers = {name: _header(stream, name, known[name].file_size, where) for name, stream in streams.items()}
        lengths = {name: length for name, (length, _) in headers.items()}
        if len(set(lengths.values())) != 1:
            shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ArtifactError(f"the columns of {where} are not of one length: {shown or 'there is none'}")
        total = next(iter(lengths.values()))
        if not total:
            raise ArtifactError(f"{where} is empty", hint="A dump has one row per token.")
        for start in range(0, total, ROWS):
            rows = min(ROWS, total - start)
            yield {name: _part(stream, headers[name][1], rows, name, where) for name, stream in streams.items()}


def _header(stream: IO[bytes], name: str, size: int, where: str) -> tuple[int, np.dtype[Any]]:
    """Return rows and dtype of a plain array of one dimension; its claim is held against the member's size.

    numpy evaluates this line as a Python literal; here it has to be, letter for letter, what numpy writes.
    """
    start = stream.read(8)
    width = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}.get(start[6:])
    if start[:6] != MAGIC or width is None:
        raise ArtifactError(f"{where}: the column {name!r} is no .npy array of format 1 to 3")
    length = int.from_bytes(stream.read(width), "little")
    found = HEADER.fullmatch(stream.read(length)) if length <= LONGEST else None
    if found is None:
        raise ArtifactError(f"{where}: the column {name!r} has a header that numpy does not write for plain columns")
    descr, shape = found[1].decode(), [int(item) for item in found[2].decode().split(",") if item.strip()]
    if "O" in descr:
        raise ArtifactError(
            f"{where}: the column {name!r} holds Python objects, which are a pickle; nothing was executed",
            hint="Write text ids as an array of fixed width: np.array(ids, dtype=str).",
        )
    if len(shape) != 1:
        raise ArtifactError(f"the columns of {where} are not of one length: {name} {tuple(shape)}")
    dtype = np.dtype(descr)
    if shape[0] * dtype.itemsize > size or dtype.itemsize > LONGEST:
        raise ArtifactError(f"{where}: the column {name!r} claims {shape[0]} values of {descr} in {size} bytes")
    return shape[0], dtype


def _part(stream: IO[bytes], dtype: np.dtype[Any], rows: int, name: str, where: str) -> NDArray[Any]:
    data = stream.read(rows * dtype.itemsize)
    if len(data) != rows * dtype.itemsize:
        raise ArtifactError(f"{where} is truncated: the column {name!r} ends early")
    return np.frombuffer(data, dtype=dtype)

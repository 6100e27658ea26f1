"""`.pt` files: named columns and plain metadata, nothing else.

The file is what torch.save makes of {"schema_version", "columns": {name: tensor}, "meta": {...}}. Reading is
defended twice: before torch sees it, the archive must be uncompressed and its pickle may hold only the
opcodes and the few globals that such a dictionary needs; then torch.load(weights_only=True) decodes it.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import pickletools
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xcfg.artifacts.reading import open_regular
from xcfg.errors import ArtifactError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

TENSORS_SCHEMA = "xcfg.tensors.v1"
DTYPES = ("float32", "float64", "bool", "int8", "int16", "int32", "int64")
MAX_PICKLE = 16 * 1024 * 1024
MMAP_FROM = 16 * 1024 * 1024
_MAX_DEPTH = 32
_MALFORMED = (
    zipfile.BadZipFile,
    struct.error,
    ArithmeticError,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)
"""What zipfile and pickletools raise on arbitrary bytes."""
_MEMBER = re.compile(
    r"data\.pkl|data/[0-9]+|version|byteorder|\.format_version|\.storage_alignment|\.data/serialization_id"
)
_STORAGES = {"Float", "Double", "Bool", "Char", "Short", "Int", "Long"}
_GLOBALS = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"} | {f"torch {s}Storage" for s in _STORAGES}
_OPCODE = re.compile(
    "PROTO|STOP|MARK|EMPTY_DICT|EMPTY_LIST|EMPTY_TUPLE|TUPLE[123]?|SETITEMS?|APPENDS?|NONE|NEWTRUE|NEWFALSE|"
    "BININT[12]?|LONG1|BINFLOAT|BINUNICODE|BINPUT|LONG_BINPUT|BINGET|LONG_BINGET|GLOBAL|REDUCE|BINPERSID"
)


def save_pt(columns: Mapping[str, NDArray[np.generic]], meta: Mapping[str, Any]) -> bytes:
    """Return the bytes of a `.pt` file; equal input gives equal bytes, and values are kept bit for bit.

    columns: name -> array of float32, float64, bool or int8/16/32/64, any shape, native byte order. meta:
    JSON values (finite numbers). Raises ArtifactError for anything else.
    """
    import torch

    tensors = {_name(name): _tensor(name, array) for name, array in columns.items()}
    document = {"schema_version": TENSORS_SCHEMA, "columns": tensors, "meta": _plain(meta, "meta", 0)}
    buffer = io.BytesIO()
    torch.save(document, buffer)
    return buffer.getvalue()


def load_pt(path: Path, *, sha256: str = "") -> tuple[dict[str, NDArray[np.generic]], dict[str, Any]]:
    """Return (columns, meta) of a `.pt` file; large files are mapped, so their pages are read when used.

    sha256: digest that the file must have. Raises ArtifactError, and has executed nothing from the file, when
    it is no regular file, altered, or holds anything but columns and plain metadata.
    """
    import torch

    size = _check_file(path, sha256)
    try:
        document = torch.load(str(path), map_location="cpu", weights_only=True, mmap=size >= MMAP_FROM)
    except Exception as error:  # noqa: BLE001 - torch documents no type for a malformed file
        raise ArtifactError(f"{str(path)!r} is malformed: {str(error).splitlines()[0][:200]}") from None
    if not isinstance(document, dict) or set(document) != {"schema_version", "columns", "meta"}:
        raise ArtifactError(f"{str(path)!r} does not hold columns and meta")
    if document["schema_version"] != TENSORS_SCHEMA:
        raise ArtifactError(
            f"{str(path)!r} has schema_version {document['schema_version']!r}",
            hint=f"Known: {TENSORS_SCHEMA}.",
        )
    columns, meta = document["columns"], document["meta"]
    if not isinstance(columns, dict) or not isinstance(meta, dict):
        raise ArtifactError(f"{str(path)!r} does not hold columns and meta")
    arrays = {_name(name): _array(path, name, value) for name, value in columns.items()}
    return arrays, _plain(meta, "meta", 0)


def _check_file(path: Path, sha256: str) -> int:
    """Check digest, archive and pickle opcodes; return the size in bytes."""
    with os.fdopen(open_regular(str(path)), "rb") as stream:
        if sha256 and hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise ArtifactError(f"{str(path)!r} was altered after it was sealed")
        size = stream.seek(0, os.SEEK_END)
        try:
            with zipfile.ZipFile(stream) as archive:
                _check_pickle(path, _pickle_of(path, archive, size))
        except _MALFORMED as error:
            raise ArtifactError(f"{str(path)!r} is no .pt archive: {error}") from None
    return size


def _pickle_of(path: Path, archive: zipfile.ZipFile, size: int) -> bytes:
    members = archive.infolist()
    packed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
    if packed or archive.comment or sum(member.file_size for member in members) > size:
        raise ArtifactError(f"{str(path)!r} has compressed or overlapping members; torch writes none")
    names = [member.filename for member in members]
    prefix = names[0].partition("/")[0] if names else ""
    odd = [name for name in names if not _MEMBER.fullmatch(name.removeprefix(f"{prefix}/"))]
    if odd or len(set(names)) != len(names) or f"{prefix}/data.pkl" not in names:
        raise ArtifactError(f"{str(path)!r} is no archive of tensors: {(odd or names)[:3]}")
    pickled = archive.getinfo(f"{prefix}/data.pkl")
    if pickled.file_size > MAX_PICKLE:
        raise ArtifactError(f"{str(path)!r}: data.pkl has {pickled.file_size} bytes, more than {MAX_PICKLE}")
    return archive.read(pickled)


def _check_pickle(path: Path, data: bytes) -> None:
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if not _OPCODE.fullmatch(opcode.name):
                raise ArtifactError(f"{str(path)!r}: the pickle opcode {opcode.name} has no place in a .pt file")
            if opcode.name == "GLOBAL" and argument not in _GLOBALS:
                raise ArtifactError(
                    f"{str(path)!r} names the global {str(argument)[:100]!r}; nothing of it was executed",
                    hint="A .pt file of xcfg holds tensors and plain values only. Load this one nowhere.",
                )
    except _MALFORMED as error:
        raise ArtifactError(f"{str(path)!r} has a malformed pickle: {error}") from None


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ArtifactError(f"column name {name!r} is no identifier")
    return name


def _tensor(name: str, array: NDArray[np.generic]) -> torch.Tensor:
    import torch

    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        raise ArtifactError(f"column {name!r} is {array.dtype.str}", hint="Use one of " + ", ".join(DTYPES) + ".")
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = array.copy(order="C")
    return torch.from_numpy(array)


def _is_special(value: torch.Tensor) -> bool:
    import torch

    return value.layout is not torch.strided or value.requires_grad or not value.is_contiguous()


def _array(path: Path, name: str, value: object) -> NDArray[np.generic]:
    import torch

    if type(value) is not torch.Tensor or _is_special(value):
        raise ArtifactError(f"{str(path)!r}: column {name!r} is a {type(value).__name__}, not a plain tensor")
    array: NDArray[np.generic] = value.numpy()
    if array.dtype.name not in DTYPES:
        raise ArtifactError(f"{str(path)!r}: column {name!r} is {array.dtype.name}")
    array.flags.writeable = False
    return array


def _plain(value: Any, where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ArtifactError(f"{where} is nested too deeply")
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: _plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise ArtifactError(f"{where} is a {type(value).__name__} {value!r:.80}", hint="Metadata holds plain JSON values.")

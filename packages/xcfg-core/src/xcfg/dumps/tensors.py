"""Canonical safetensors: one tensor per column, read in slices; its metadata may attest to compute dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from xcfg.dumps.columns import OPTIONAL, REQUIRED, check_batch, is_canonical, refuse_missing
from xcfg.errors import ArtifactError

ROWS = 1 << 18
LARGEST_HEADER = 1 << 20
"""Bytes of a header: a dump has about a dozen tensors."""
ATTESTED = {"compute_dtype.training": "training", "compute_dtype.rollout": "rollout"}
READABLE = frozenset(("F32", "F64", "F16", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "BOOL"))


class SafetensorsReader:
    """Reads canonical safetensors. sample_id is an integer tensor, since safetensors holds no text."""

    def detect(self, path: Path) -> str:
        """Return why the file is a canonical dump: its header names the required columns."""
        try:
            _check_header(path)
            with safe_open(path, framework="numpy") as file:
                names = set(file.keys())
        except (OSError, ArtifactError, SafetensorError):
            return ""
        return "its header has the canonical columns" if is_canonical(names) else ""

    def attested(self, path: Path) -> dict[str, str]:
        """Return side -> compute dtype as the file's metadata attests to it; empty where it says nothing."""
        _check_header(path)
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
        except SafetensorError as error:
            raise ArtifactError(f"{str(path)!r} is no safetensors file: {error}") from None
        return {side: metadata[key] for key, side in ATTESTED.items() if metadata.get(key)}

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches of at most 262,144 rows, in the stored dtypes. Raises ArtifactError."""
        _check_header(path)
        try:
            with safe_open(path, framework="numpy") as file:
                names, total = _columns(file, str(path))
            for start in range(0, total, ROWS):
                # Opened for each batch: the pages of a mapping stay in memory until it is closed.
                stop = min(start + ROWS, total)
                with safe_open(path, framework="numpy") as file:
                    batch = {name: np.asarray(file.get_slice(name)[start:stop]) for name in names}
                check_batch(batch, f"{path} from row {start}")
                yield batch
        except SafetensorError as error:
            raise ArtifactError(f"{str(path)!r} is no safetensors file: {error}") from None


def _columns(file: Any, where: str) -> tuple[list[str], int]:
    """Return the names of the columns and their length, checked. Raises ArtifactError."""
    names = set(file.keys())
    refuse_missing(names, where)
    views = {name: file.get_slice(name) for name in sorted(names) if name in REQUIRED or name in OPTIONAL}
    shapes = {name: tuple(view.get_shape()) for name, view in views.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 for shape in shapes.values()):
        shown = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ArtifactError(
            f"the columns of {where!r} are not of one length: {shown}",
            hint="Every column has one value per token.",
        )
    for name, view in views.items():
        if view.get_dtype() not in READABLE:
            raise ArtifactError(
                f"{where!r}: the column {name!r} is stored as {view.get_dtype()}",
                hint="Store scores as F32 or F64: a rounded score is not what the engine computed.",
            )
    total = shapes["sample_id"][0]
    if total == 0:
        raise ArtifactError(f"{where!r} is empty", hint="A dump has one row per token.")
    return list(views), total


def _check_header(path: Path) -> None:
    """Refuse a header that no dump needs, before anything parses it."""
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
    total = path.stat().st_size
    if total < 10 or size > total - 8:
        raise ArtifactError(f"{str(path)!r} is no safetensors file: its header does not fit into {total} bytes")
    if size > LARGEST_HEADER:
        raise ArtifactError(f"the header of {str(path)!r} has {size} bytes, more than {LARGEST_HEADER}")

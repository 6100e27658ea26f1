"""What the pickle machine builds: plain values, and references to bytes that stay in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Symbol:
    """A global that the file names; never imported."""

    name: str


@dataclass(frozen=True)
class Text:
    """A long text that stays in the file: its bytes are UTF-8."""

    start: int
    size: int


@dataclass(frozen=True)
class TensorRef:
    """A tensor: dtype as torch calls it, the archive's key of its storage, and offset, shape and strides in items."""

    dtype: str
    key: str
    numel: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass
class ArrayRef:
    """A numpy array or scalar: dtype string, shape, and its bytes as text in Latin-1 (protocol 2 has no bytes)."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    data: bytes | Text | None = None


class Numbers(list[Any]):
    """A pickled list; long runs of numbers in it are numpy arrays, in their place."""

    def array(self) -> NDArray[Any] | None:
        """Return the list as one array of numbers, or None when it holds anything else."""
        runs: list[NDArray[Any]] = []
        for item in self:
            run = item if isinstance(item, np.ndarray) else _single(item)
            if run is None:
                return None
            runs.append(run)
        return np.concatenate(runs) if runs else np.zeros(0, dtype=np.int64)


def _single(item: Any) -> NDArray[Any] | None:
    """Return one number as an array of the narrowest dtype that the runs beside it may have."""
    if item is None:
        return np.array([np.nan], dtype=np.float32)
    if type(item) is float:
        return narrow(np.array([item]))
    if type(item) is int and -(2**63) <= item < 2**63:
        return np.array([item], dtype=np.int32 if -(2**31) <= item < 2**31 else np.int64)
    return np.array([item]) if type(item) is bool else None


def narrow(values: NDArray[np.float64]) -> NDArray[Any]:
    """Return the values as float32 where that is exact for all of them, else as they are."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
    return single if np.array_equal(single, values, equal_nan=True) else values

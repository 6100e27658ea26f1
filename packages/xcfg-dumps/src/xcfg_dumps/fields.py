"""What a training loop hands over, as checked numpy arrays: every refusal is a UsageError that names the field.

A tensor is anything that numpy takes, or that has detach(), float(), cpu() and numpy(); nothing of a framework is
imported.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.errors import UsageError

PLACEHOLDER = 32
"""Active tokens from which a column of exact zeros is refused: in float32, 0 means a probability above 1 - 6e-8."""
SHAPES = {1: "one value per token", 2: "rows of one value per token"}


def field(data: Any, name: str, hint: str = "Capture after it was computed.") -> Any:
    """Return data[name]. Raises UsageError with `hint` and the names that are there."""
    try:
        value = data[name]
    except KeyError:
        value = None
    if value is None:
        there = ", ".join(sorted(map(str, data.keys())))
        raise UsageError(f"the batch has no {name!r}; there are {there}", hint=hint)
    return value


def integers(values: Any, name: str, ndim: int = 1) -> NDArray[np.int64]:
    """Return whole numbers of `ndim` dimensions as int64; floats and booleans are no ids. Raises UsageError."""
    return _numpy(values, name, ndim, "iu", "integers").astype(np.int64)


def mask(values: Any, name: str, ndim: int = 1) -> NDArray[np.bool_]:
    """Return booleans, or zeros and ones of any type, as bool of `ndim` dimensions. Raises UsageError."""
    array = _numpy(values, name, ndim, "biuf", "a mask")
    if not np.isin(array, (0, 1)).all():
        raise UsageError(f"{name} holds something else than 0 and 1", hint="A mask says which tokens count.")
    return array.astype(np.bool_)


def scores(values: Any, name: str, ndim: int = 1) -> NDArray[Any]:
    """Return log probabilities (nats) of `ndim` dimensions as float64 or float32, whichever holds them.

    Raises UsageError. bfloat16, which numpy lacks, and float16 become float32.
    """
    array = _numpy(values, name, ndim, "fiu", "floating")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)


def whole(value: Any, name: str) -> int:
    """Return a length, an index or a version. Raises UsageError for anything but an integer from 0 below 2^31."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 2**31:
        raise UsageError(f"{name} is {value!r:.60}, not an integer from 0")
    return number


def rows(columns: Mapping[str, Any]) -> int:
    """Return how many samples all columns have. Raises UsageError naming a column of another length."""
    lengths = {}
    for name, column in columns.items():
        try:
            lengths[name] = len(column)
        except TypeError:
            raise UsageError(f"{name} is {column!r:.60}, not a list with one entry per sample") from None
    first, *others = lengths
    for name in others:
        if lengths[name] != lengths[first]:
            raise UsageError(
                f"{name} has {lengths[name]} samples and {first} has {lengths[first]}",
                hint="Each list has one entry per sample, in the same order.",
            )
    return lengths[first]


def refuse_same(sides: Mapping[str, Any], hint: str) -> None:
    """Raise UsageError when the two columns, the rollout's first, are one object or start at the same address."""
    (first, one), (second, two) = sides.items()
    if one is two or (_address(one) is not None and _address(one) == _address(two)):
        raise UsageError(f"{second} is the very tensor {first}, so nothing could differ", hint=hint)


def refuse_zeros(parts: Iterable[NDArray[Any]], name: str, hint: str) -> None:
    """Raise UsageError when PLACEHOLDER active scores or more, of one part or of all together, are exactly 0."""
    columns = list(parts)
    for column in (*columns, np.concatenate([np.zeros(0), *columns])):
        if len(column) >= PLACEHOLDER and not column.any():
            raise UsageError(
                f"{name} is 0 on all {len(column)} active tokens: a placeholder, not log probabilities", hint=hint
            )


def versions(columns: Mapping[str, Iterable[Any]]) -> list[int]:
    """Return the weight versions that the columns name, sorted; an entry may be None. Raises UsageError."""
    found = {whole(item, name) for name, column in columns.items() for item in column if item is not None}
    return sorted(found)


def _address(values: Any) -> tuple[str, int] | None:
    """Return where the first value lies; None for what has no address, an empty tensor included."""
    if hasattr(values, "data_ptr"):
        try:
            place = int(values.data_ptr())
        except RuntimeError:  # a sparse tensor; it is refused where it is read
            place = 0
        return (str(getattr(values, "device", "cpu")), place) if place else None
    if isinstance(values, np.ndarray) and values.size:
        return "cpu", values.__array_interface__["data"][0]
    return None


def _numpy(values: Any, name: str, ndim: int, kinds: str, wanted: str) -> NDArray[Any]:
    """Return a tensor, array or list as numpy; narrower floats than float32 as float32."""
    try:
        if hasattr(values, "detach"):
            values = values.detach()
            values = (values.float() if values.is_floating_point() and values.element_size() < 4 else values).cpu()
            values = values.numpy()
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name} is no array of numbers: {str(error).splitlines()[0]:.120}") from None
    if array.dtype.kind not in kinds:
        raise UsageError(f"{name} is {array.dtype}, not {wanted}")
    if array.ndim != ndim:
        raise UsageError(f"{name} has shape {array.shape}, not {SHAPES[ndim]}")
    return array

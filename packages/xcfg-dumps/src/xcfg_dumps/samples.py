"""What every reader of this package makes of a record: one sample, checked, and batches of canonical columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.errors import ArtifactError

ROWS = 1 << 16
"""Tokens of one batch, at least; a batch ends with a whole sample."""
FILLER = 8
_FLOATS: frozenset[type] = frozenset((float, int, type(None)))
_WHOLE: frozenset[type] = frozenset((int,))
_MASKS: frozenset[type] = frozenset((bool, int, float))


@dataclass(frozen=True)
class Sample:
    """One sequence of n tokens at positions first, first + 1, …

    token_ids: integer [n]. active: bool [n]. logp: side (`rollout`, `training`) -> floating [n], NaN where there
    is none. columns: optional canonical columns [n], the same in every sample of a file.
    """

    sample_id: str
    token_ids: NDArray[Any]
    active: NDArray[np.bool_]
    logp: Mapping[str, NDArray[Any]]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    first: int = 0

    def __post_init__(self) -> None:
        lengths = {"token_ids": len(self.token_ids), "active": len(self.active)}
        lengths |= {f"{side} log probabilities": len(values) for side, values in self.logp.items()}
        lengths |= {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) != 1:
            shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ArtifactError(f"sample {self.sample_id!r} has columns of different lengths: {shown}")


NAMES = {"rollout": "logp_rollout", "training": "logp_train"}


def batches(samples: Iterable[Sample], where: str) -> Iterator[dict[str, Any]]:
    """Yield the samples as batches of canonical columns. Raises ArtifactError when there is no sample."""
    held: list[Sample] = []
    rows = total = 0
    for sample in samples:
        held.append(sample)
        rows += len(sample.token_ids)
        total += 1
        if rows >= ROWS:
            yield _batch(held, where)
            held, rows = [], 0
    if held:
        yield _batch(held, where)
    if not total:
        raise ArtifactError(f"{where} holds no sample", hint="A dump has one record per sequence.")


def _batch(samples: list[Sample], where: str) -> dict[str, Any]:
    shapes = {frozenset((*sample.logp, *sample.columns)) for sample in samples}
    if len(shapes) > 1:
        odd = frozenset.union(*shapes) - frozenset.intersection(*shapes)
        raise ArtifactError(f"{where}: only some samples have {', '.join(sorted(odd))}")
    lengths = [len(sample.token_ids) for sample in samples]
    names = np.empty(len(samples), dtype=object)
    names[:] = [sample.sample_id for sample in samples]
    batch: dict[str, Any] = {
        "sample_id": np.repeat(names, lengths),
        "position": np.concatenate(
            [np.arange(item.first, item.first + n) for item, n in zip(samples, lengths, strict=True)]
        ),
        "token_id": np.concatenate([sample.token_ids for sample in samples]),
        "active": np.concatenate([sample.active for sample in samples]),
    }
    for side in samples[0].logp:
        batch[NAMES[side]] = np.concatenate([sample.logp[side] for sample in samples])
    for name in samples[0].columns:
        batch[name] = np.concatenate([sample.columns[name] for sample in samples])
    return batch


def floats(values: Any, where: str) -> NDArray[Any]:
    """Return a list of numbers (null is NaN) or an array of one dimension as floating [n]. Raises ArtifactError."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "fiu":
            raise ArtifactError(f"{where} is an array of {values.dtype} {values.shape}, not one number per token")
        return values if values.dtype in (np.float32, np.float64) else values.astype(np.float64)
    if not isinstance(values, list) or not _FLOATS.issuperset(map(type, values)):
        raise ArtifactError(f"{where} is {_shown(values, _FLOATS)}, not a list of numbers")
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise ArtifactError(f"{where} holds an integer that no float has") from None


def whole(values: Any, where: str) -> NDArray[np.int64]:
    """Return a list of integers or an integer array of one dimension as int64 [n]. Raises ArtifactError."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise ArtifactError(f"{where} is an array of {values.dtype} {values.shape}, not one integer per token")
        return values.astype(np.int64)
    if not isinstance(values, list) or not _WHOLE.issuperset(map(type, values)):
        raise ArtifactError(f"{where} is {_shown(values, _WHOLE)}, not a list of integers")
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise ArtifactError(f"{where} holds an integer of more than 64 bits") from None


def mask(values: Any, where: str) -> NDArray[np.bool_]:
    """Return a list or array of booleans, or of zeros and ones, as bool [n]. Raises ArtifactError."""
    if isinstance(values, np.ndarray):
        array = values
    elif isinstance(values, list) and _MASKS.issuperset(map(type, values)):
        array = np.array(values, dtype=np.float64)
    else:
        raise ArtifactError(f"{where} is {_shown(values, _MASKS)}, not a mask")
    if array.ndim != 1 or array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise ArtifactError(f"{where} holds something else than 0 and 1")
    return array.astype(np.bool_)


def number(value: Any, where: str) -> int:
    """Return a length or an index. Raises ArtifactError for anything but an integer from 0 to 2^31."""
    if type(value) is not int or not 0 <= value < 2**31:
        raise ArtifactError(f"{where} is {value!r:.60}, not an integer from 0")
    return value


def after(values: NDArray[Any], total: int, where: str) -> NDArray[Any]:
    """Return values of a response as values of `total` tokens: NaN before them. Raises ArtifactError."""
    if len(values) > total:
        raise ArtifactError(f"{where} has {len(values)} values for {total} tokens")
    return np.concatenate([np.full(total - len(values), np.nan, dtype=values.dtype), values])


def refuse_filler(values: NDArray[Any], active: NDArray[np.bool_], where: str, hint: str) -> None:
    """Raise ArtifactError when every active value is exactly 0, which is what a loop writes that computed none.

    In float32 a log probability is 0 only above 1 - 6e-8, so FILLER tokens of one sample that all are is no text.
    """
    chosen = values[active]
    if len(chosen) >= FILLER and not chosen.any():
        raise ArtifactError(f"{where} is 0 on all {len(chosen)} active tokens: it was not computed", hint=hint)


def _shown(values: Any, good: frozenset[type]) -> str:
    if not isinstance(values, list):
        return f"a {type(values).__name__} {values!r:.60}"
    odd = next(item for item in values if type(item) not in good)
    return f"a list with {odd!r:.60}"

"""From batches to the rows of one file: compact columns, sorted, every row accounted for, one or both sides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xcfg.dumps.columns import NUMBER, SIDE_COLUMNS, Batch, check_batch
from xcfg.dumps.growing import GrowingColumns
from xcfg.errors import ArtifactError

COMPACT = {"position": "int32", "token_id": "int32", "weight_version": "int32", "token_rank": "int32", "rank": "int16"}
"""Columns whose bounds (columns.BOUNDS) fit into a narrower dtype than the one they come in."""
SLICE = 1 << 18
"""Rows that are looked at together where the whole column would need a copy of itself."""


@dataclass(frozen=True)
class Rows:
    """T rows of S samples, sorted by sample (in order of appearance) and position, no key twice.

    columns: name -> [T]: `sequence`, `position`, `token_id` int32, `active` bool, scores float32 where that is
    exact and float64 otherwise, optional columns. sample_ids: S names. source: the file, for messages.
    dtypes: side -> attested compute dtype. unused: a score column that was left out, since another file brings it.
    """

    columns: Batch
    sample_ids: tuple[str, ...]
    source: str = "the dump"
    dtypes: Mapping[str, str] = field(default_factory=dict)
    unused: str = ""

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides whose log probabilities are here: `rollout`, `training` or both."""
        return tuple(side for side, name in SIDE_COLUMNS.items() if name in self.columns)

    @property
    def count(self) -> int:
        """T."""
        return len(self.columns["position"])

    @property
    def offsets(self) -> NDArray[np.int64]:
        """int64 [S + 1]: sample s is rows offsets[s] to offsets[s + 1]."""
        starts = np.arange(len(self.sample_ids) + 1, dtype=self.columns["sequence"].dtype)
        return np.searchsorted(self.columns["sequence"], starts).astype(np.int64)

    def sample_of(self, row: int) -> str:
        """The name of the sample to which a row belongs."""
        return self.sample_ids[int(self.columns["sequence"][row])]


def collect_rows(
    batches: Iterable[Mapping[str, Any]], *, dtypes: Mapping[str, str] | None = None, source: str = "the dump"
) -> Rows:
    """Return checked batches as the rows of one file; no batch at all gives 0 rows with both scores.

    Raises ArtifactError for duplicate (sample_id, position) pairs, an active token at position 0 (no logits
    come before it), batches whose columns or id types differ, and everything that `check_batch` refuses.
    """
    samples = _Samples(source)
    growing = GrowingColumns()
    names: frozenset[str] = frozenset()
    for part in _parts(batches, samples, source):
        names = names or frozenset(part)
        if frozenset(part) != names:
            odd = ", ".join(sorted(names ^ frozenset(part)))
            raise ArtifactError(f"the batches of {source} do not all have the columns {odd}")
        growing.append(part)
    if not growing.rows:
        return Rows(no_columns(), (), source, dict(dtypes or {}))
    columns = growing.columns()
    rows = Rows(_sorted(columns), samples.names, source, dict(dtypes or {}))
    _refuse_duplicates(rows)
    return rows


class _Samples:
    """Numbers sample ids in order of appearance, over all batches of one file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.codes: dict[str | int, int] = {}
        self.kind: type | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, self.codes))

    def encode(self, ids: NDArray[Any]) -> NDArray[np.int32]:
        """Return the number of each row's sample; only the first row of a run of equal ids is looked up."""
        starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
        runs = ids[starts].tolist()
        for value in runs:
            kind = str if isinstance(value, str) else int
            if not isinstance(value, (str, int)) or isinstance(value, bool):
                raise ArtifactError(f"sample_id of {self.source} is {value!r:.80}, neither text nor an integer")
            if kind is not (self.kind or kind):
                raise ArtifactError(f"sample_id of {self.source} is text in some rows and an integer in others")
            self.kind = kind
        numbers = np.array([self.codes.setdefault(value, len(self.codes)) for value in runs], dtype=np.int32)
        return np.repeat(numbers, np.diff(np.append(starts, len(ids))))


def _parts(batches: Iterable[Mapping[str, Any]], samples: _Samples, source: str) -> Iterator[Batch]:
    for batch in batches:
        arrays = {name: np.asarray(values) for name, values in batch.items()}
        check_batch(arrays, source)
        if len(arrays["sample_id"]):
            arrays["sequence"] = samples.encode(arrays.pop("sample_id"))
            arrays.pop("source", None)
            yield {name: compact(name, values) for name, values in arrays.items()}


def compact(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return a checked column in the narrowest of its dtypes that holds every value; scores stay bit for bit."""
    if name in COMPACT:
        return values.astype(COMPACT[name], copy=False)
    if name in NUMBER and values.dtype != np.float32:
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = values.astype(np.float32)
        if np.array_equal(narrow, values, equal_nan=True):
            return narrow
        return values.astype(np.float64, copy=False)
    return values


def _sorted(columns: Batch) -> Batch:
    sequence, position = columns["sequence"], columns["position"]
    if _rising(sequence, position):
        return columns
    order = np.lexsort((position, sequence))
    return {name: columns.pop(name)[order] for name in list(columns)}


def _rising(sequence: NDArray[Any], position: NDArray[Any]) -> bool:
    """Whether (sequence, position) rises from row to row; a slice at a time, since most dumps come in order."""
    for start in range(0, len(sequence), SLICE):
        stop = start + SLICE + 1
        step = np.diff(sequence[start:stop])
        if not bool(((step > 0) | ((step == 0) & (np.diff(position[start:stop]) > 0))).all()):
            return False
    return True


def no_columns() -> Batch:
    """Return the columns of a dump of 0 rows, with both scores."""
    integers = {name: np.zeros(0, dtype=np.int32) for name in ("position", "token_id", "sequence")}
    scores = {name: np.zeros(0) for name in SIDE_COLUMNS.values()}
    return {**integers, **scores, "active": np.zeros(0, dtype=np.bool_)}


def _refuse_duplicates(rows: Rows) -> None:
    sequence, position = rows.columns["sequence"], rows.columns["position"]
    again = []
    if not _rising(sequence, position):  # sorted, so what does not rise stays
        again = np.flatnonzero((np.diff(sequence) == 0) & (np.diff(position) == 0)).tolist()
    if again:
        row = again[0]
        raise ArtifactError(
            f"{rows.source} has {len(again)} duplicate rows, the first for sample "
            f"{rows.sample_of(row)!r}, position {int(position[row])}",
            hint="Keep one row per token: data- or tensor-parallel ranks often write the same sample.",
        )
    early = np.flatnonzero(rows.columns["active"] & (position == 0))
    if len(early):
        raise ArtifactError(
            f"{rows.source}: position 0 of sample {rows.sample_of(int(early[0]))!r} is active, "
            "and no logits come before it",
            hint="Positions count from the first token of the prompt; mark the first token as not active.",
        )

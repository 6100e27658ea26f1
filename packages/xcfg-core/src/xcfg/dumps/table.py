"""From batches of canonical columns to one ragged table over all tokens, with every row accounted for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from xcfg.dumps.columns import OPTIONAL, Batch, check_batch
from xcfg.errors import ArtifactError
from xcfg.identity.rollout import Rollout
from xcfg.plugin.protocols import DumpReader
from xcfg.schema.identity import (
    ROLLOUT_SCHEMA,
    SEGMENT_GENERATED,
    SEGMENT_PROMPT,
    CheckpointRef,
    RolloutManifest,
    SamplingRecord,
    SequenceRecord,
    TokenizerRef,
)

SIDES = ("training", "rollout")
SCORE_COLUMNS = tuple(name for name in OPTIONAL if name not in ("weight_version", "rank", "source"))


@runtime_checkable
class AttestingReader(Protocol):
    """A reader whose files can attest to compute dtypes."""

    def attested(self, path: Path) -> dict[str, str]:
        """Return side (`training`, `rollout`) -> compute dtype."""
        ...


@dataclass(frozen=True)
class DumpTable:
    """A dump over T tokens of S sequences, sorted by sequence (in order of appearance) and position.

    training, rollout: log probabilities, float32 or float64 [T], nats, as stored; finite where active.
    active: bool [T]. token_ids, positions: int64 [T]. offsets: int64 [S + 1]. weight_version: int32 [T].
    rank: int16 [T], the training rank, or None. columns: optional score columns [T].
    dtypes: side -> attested compute dtype. unattested: what the dump says nothing about.
    """

    training: NDArray[Any]
    rollout: NDArray[Any]
    active: NDArray[np.bool_]
    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sample_ids: tuple[str, ...]
    weight_version: NDArray[np.int32]
    rank: NDArray[np.int16] | None = None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    unattested: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """T; 0 means that the two sides had no token in common."""
        return len(self.token_ids)

    def as_rollout(self) -> Rollout:
        """Return the dump's tokens as a rollout for the comparator; nothing about its engine is attested.

        Rows before a sequence's first active token may be absent, so positions need not start at 0.
        """
        tensors: dict[str, NDArray[np.generic]] = {
            "token_ids": self.token_ids,
            "offsets": self.offsets,
            "active_mask": self.active,
            "attention_mask": np.ones(self.rows, dtype=np.bool_),
            "position_ids": self.positions,
            "selected_token_ids": self.token_ids,
            "segment": np.where(self.active, SEGMENT_GENERATED, SEGMENT_PROMPT).astype(np.int8),
            "weight_version": self.weight_version,
        }
        content = hashlib.sha256()
        for name in sorted(tensors):
            content.update(name.encode() + np.ascontiguousarray(tensors[name]).tobytes())
        manifest = RolloutManifest(
            schema_version=ROLLOUT_SCHEMA,
            checkpoint=CheckpointRef(uri=""),
            tokenizer=TokenizerRef(),
            sampling=SamplingRecord(),
            sequences=tuple(self._records()),
            token_count=self.rows,
            active_count=int(self.active.sum()),
            tensors_sha256=content.hexdigest(),
        )
        return Rollout(manifest, tensors, content.hexdigest())

    def _records(self) -> Iterable[SequenceRecord]:
        for index, name in enumerate(self.sample_ids):
            span = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
            yield SequenceRecord(
                request_id=name, length=span.stop - span.start, active_tokens=int(self.active[span].sum())
            )


def read_table(reader: DumpReader, path: Path) -> DumpTable:
    """Return the whole dump in `path`. Raises ArtifactError when it cannot be read or is not canonical."""
    try:
        dtypes = reader.attested(path) if isinstance(reader, AttestingReader) else {}
        return collect(reader.read(path), dtypes=dtypes, source=str(path))
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read: {error.strerror}") from None


def collect(
    batches: Iterable[Mapping[str, Any]], *, dtypes: Mapping[str, str] | None = None, source: str = "the dump"
) -> DumpTable:
    """Return checked batches as one table; no batch at all gives a table of 0 rows.

    Raises ArtifactError for duplicate (sample_id, position) pairs, an active token at position 0 (no logits
    come before it), batches whose columns or id types differ, and everything that `check_batch` refuses.
    """
    parts = [_checked(batch, source) for batch in batches]
    parts = [part for part in parts if len(part["sample_id"])]
    names = {frozenset(part) for part in parts}
    if len(names) > 1:
        odd = ", ".join(sorted(frozenset.union(*names) - frozenset.intersection(*names)))
        raise ArtifactError(f"the batches of {source} do not all have the columns {odd}")
    if not parts:
        return _table(_empty(), (), dtypes or {})
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    codes, sample_ids = _factorise(columns.pop("sample_id"), source)
    columns.pop("source", None)
    order = np.lexsort((columns["position"], codes))
    columns = {name: values[order] for name, values in columns.items()}
    columns["sequence"] = codes[order]
    _refuse_duplicates(columns, sample_ids, source)
    return _table(columns, sample_ids, dtypes or {})


def _checked(batch: Mapping[str, Any], source: str) -> Batch:
    arrays = {name: np.asarray(values) for name, values in batch.items()}
    check_batch(arrays, source)
    return arrays


def _empty() -> Batch:
    integers = {name: np.zeros(0, dtype=np.int64) for name in ("position", "token_id", "sequence")}
    scores = {name: np.zeros(0) for name in ("logp_train", "logp_rollout")}
    return {**integers, **scores, "active": np.zeros(0, dtype=np.bool_)}


def _factorise(ids: NDArray[Any], source: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return a number per row, in order of first appearance, and the ids as text."""
    kinds = {"text" if isinstance(value, str) else "integer" for value in ids} if ids.dtype == object else set()
    if len(kinds) > 1:
        raise ArtifactError(f"sample_id of {source} is text in some rows and an integer in others")
    unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    appearance = np.argsort(first, kind="stable")
    place = np.empty(len(unique), dtype=np.int64)
    place[appearance] = np.arange(len(unique))
    return place[inverse.reshape(-1)], tuple(str(unique[at]) for at in appearance)


def _refuse_duplicates(columns: Batch, sample_ids: tuple[str, ...], source: str) -> None:
    sequence, position = columns["sequence"], columns["position"]
    again = np.flatnonzero((np.diff(sequence) == 0) & (np.diff(position) == 0))
    if len(again):
        row = int(again[0])
        raise ArtifactError(
            f"{source} has {len(again)} duplicate rows, the first for sample "
            f"{sample_ids[int(sequence[row])]!r}, position {int(position[row])}",
            hint="Keep one row per token: data- or tensor-parallel ranks often write the same sample.",
        )
    early = np.flatnonzero(columns["active"] & (position == 0))
    if len(early):
        name = sample_ids[int(sequence[int(early[0])])]
        raise ArtifactError(
            f"{source}: position 0 of sample {name!r} is active, and no logits come before it",
            hint="Positions count from the first token of the prompt; mark the first token as not active.",
        )


def _table(columns: Batch, sample_ids: tuple[str, ...], dtypes: Mapping[str, str]) -> DumpTable:
    total = len(columns["position"])
    counts = np.bincount(columns["sequence"], minlength=len(sample_ids)) if total else np.zeros(0, dtype=np.int64)
    version, rank = columns.get("weight_version"), columns.get("rank")
    unattested = [f"compute_dtype.{side}" for side in SIDES if not dtypes.get(side)]
    unattested += ["weights", "tokenizer", "transform_chain"]
    unattested += [name for name, values in (("weight_version", version), ("rank", rank)) if values is None]
    return DumpTable(
        training=columns["logp_train"],
        rollout=columns["logp_rollout"],
        active=columns["active"],
        token_ids=columns["token_id"].astype(np.int64),
        positions=columns["position"].astype(np.int64),
        offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        sample_ids=sample_ids,
        weight_version=np.zeros(total, dtype=np.int32) if version is None else version.astype(np.int32),
        rank=None if rank is None else rank.astype(np.int16),
        columns={name: columns[name] for name in SCORE_COLUMNS if name in columns},
        dtypes=dict(dtypes),
        unattested=tuple(unattested),
    )

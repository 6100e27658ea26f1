"""From batches of canonical columns to one ragged table over all tokens, with every row accounted for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from xcfg.dumps.columns import OPTIONAL, SIDE_COLUMNS
from xcfg.dumps.consistency import contradiction
from xcfg.dumps.join import Joined
from xcfg.dumps.rows import Rows, collect_rows
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
SUSPICIOUS = 32
"""Active tokens that cannot by chance all have one log probability."""
DTYPE_NAME = re.compile(r"[A-Za-z0-9_.]{0,32}")
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
    dtypes: side -> attested compute dtype. unattested: what the dump says nothing about. sources: the files,
    rollout first where two were joined, and `joined` says how they met.
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
    sources: tuple[str, ...] = ()
    joined: Joined | None = None

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


def read_rows(reader: DumpReader, path: Path) -> Rows:
    """Return the rows of the dump in `path`, of one side or both. Raises ArtifactError when it is not canonical."""
    try:
        dtypes = reader.attested(path) if isinstance(reader, AttestingReader) else {}
        for side, dtype in dtypes.items():
            if not DTYPE_NAME.fullmatch(dtype):
                raise ArtifactError(f"{path.name} attests to a compute dtype of {side} that is no name: {dtype!r:.80}")
        return collect_rows(reader.read(path), dtypes=dtypes, source=path.name)
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read: {error.strerror}") from None


def read_table(reader: DumpReader, path: Path) -> DumpTable:
    """Return the whole dump in `path`. Raises ArtifactError when it is not canonical, or holds one side only."""
    return table_of(read_rows(reader, path))


def collect(
    batches: Iterable[Mapping[str, Any]], *, dtypes: Mapping[str, str] | None = None, source: str = "the dump"
) -> DumpTable:
    """Return checked batches as one table; no batch at all gives a table of 0 rows. Errors as `collect_rows`."""
    return table_of(collect_rows(batches, dtypes=dtypes, source=source))


def _refuse_placeholders(rows: Rows) -> None:
    """A side that holds one value on many active tokens holds no scores: comparing it could only mislead."""
    active = rows.columns["active"]
    count = int(active.sum())
    for side, name in SIDE_COLUMNS.items():
        values = rows.columns[name][active]
        if count >= SUSPICIOUS and values.min() == values.max():
            raise ArtifactError(
                f"{rows.source!r}: {name} is {float(values[0])!r} on all {count} active tokens",
                hint=f"That is a placeholder and no log probability: the {side} side was not scored, or not logged.",
            )


def table_of(rows: Rows, joined: Joined | None = None) -> DumpTable:
    """Return rows with both sides as a table. Raises ArtifactError, naming the side, when one is missing."""
    absent = [side for side in SIDES if side not in rows.sides]
    if absent:
        raise ArtifactError(
            f"{rows.source!r} holds {SIDE_COLUMNS[rows.sides[0]]!r} and no {SIDE_COLUMNS[absent[0]]!r}: "
            f"the {absent[0]} side is missing",
            hint=f"Give the file with the {absent[0]} side as well: xcfg compare ROLLOUT TRAIN. "
            "The two are joined by sample_id and position.",
        )
    columns = rows.columns
    _refuse_placeholders(rows)
    version, rank = columns.get("weight_version"), columns.get("rank")
    unattested = [f"compute_dtype.{side}" for side in SIDES if not rows.dtypes.get(side)]
    unattested += ["weights", "tokenizer", "transform_chain"]
    unattested += [name for name, values in (("weight_version", version), ("rank", rank)) if values is None]
    unattested += [text for text in (contradiction(columns),) if text]
    return DumpTable(
        training=columns["logp_train"],
        rollout=columns["logp_rollout"],
        active=columns["active"],
        token_ids=columns["token_id"].astype(np.int64),
        positions=columns["position"].astype(np.int64),
        offsets=rows.offsets,
        sample_ids=rows.sample_ids,
        weight_version=np.zeros(rows.count, dtype=np.int32) if version is None else version.astype(np.int32),
        rank=None if rank is None else rank.astype(np.int16),
        columns={name: columns[name] for name in SCORE_COLUMNS if name in columns},
        dtypes=dict(rows.dtypes),
        unattested=tuple(unattested),
        sources=(rows.source,) if joined is None else (joined.rollout, joined.training),
        joined=joined,
    )

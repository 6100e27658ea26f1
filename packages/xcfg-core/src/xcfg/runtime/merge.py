"""From the reports and tensors of all ranks to one side score: who owns which token, and whether replicas agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xcfg.errors import MissingRankError, WorkerError
from xcfg.schema.worker import RankRecord, ScoreReport

Columns = dict[str, NDArray[np.generic]]
FILL: dict[str, float] = {"phase": 0, "step_batch": 0, "step_batch_padded": 0, "token_rank": 0, "weight_version": 0}


@dataclass(frozen=True)
class MergedScore:
    """One side score over T tokens. owner_rank: int16 [T], -1 where no rank owns the token."""

    columns: Columns
    records: tuple[RankRecord, ...]
    replica_disagreements: tuple[dict[str, Any], ...]


def merge_ranks(
    reports: Sequence[ScoreReport], tensors: Mapping[int, Columns], active: NDArray[np.bool_]
) -> MergedScore:
    """Return the owners' values as one table.

    Raises MissingRankError when an active token has no owner or two, WorkerError when a rank's columns have
    another shape than its request or another dtype than those of another owner. Replicas are compared value
    by value, exactly (two NaN agree), and never overwrite an owner.
    """
    total = len(active)
    records = tuple(report.record for report in reports if report.record is not None)
    if len(records) != len(reports):
        missing = sorted(report.rank for report in reports if report.record is None)
        raise MissingRankError(
            f"ranks {missing} sent no rank record", hint="Every rank reports its role, also role `none`."
        )
    owner = np.full(total, -1, dtype=np.int16)
    for record in records:
        if record.role == "owner":
            _claim(owner, record, total)
    orphans = np.flatnonzero(active & (owner < 0))
    if len(orphans):
        raise MissingRankError(
            f"{len(orphans)} active tokens have no owner among {len(records)} ranks, first at flat index {orphans[0]}",
            hint="The owners' ranges must cover every active token once.",
        )
    columns: Columns = {}
    for record in records:
        if record.role == "owner":
            _take(columns, tensors.get(record.rank, {}), record, owner, total)
    columns["active"] = active.copy()
    columns["owner_rank"] = owner
    return MergedScore(columns, records, _disagreements(records, tensors, columns, active))


def _claim(owner: NDArray[np.int16], record: RankRecord, total: int) -> None:
    _check_ranges(record, total)
    for start, stop in record.ranges:
        taken = owner[start:stop] >= 0
        if bool(taken.any()):
            first = start + int(np.flatnonzero(taken)[0])
            raise MissingRankError(f"ranks {owner[first]} and {record.rank} both own the token at flat index {first}")
        owner[start:stop] = record.rank


def _check_ranges(record: RankRecord, total: int) -> None:
    for start, stop in record.ranges:
        if not 0 <= start <= stop <= total:
            raise WorkerError(f"rank {record.rank} ({record.role}) names the range [{start}, {stop}) of {total} tokens")


def _take(columns: Columns, source: Columns, record: RankRecord, owner: NDArray[np.int16], total: int) -> None:
    if "selected_logprob" not in source:
        raise WorkerError(f"rank {record.rank} owns tokens and sent no selected_logprob")
    mine = owner == record.rank
    for name, values in source.items():
        if name in ("active", "owner_rank"):
            continue
        if values.shape[:1] != (total,):
            raise WorkerError(f"rank {record.rank} sent {name} with shape {values.shape}, not ({total}, ...)")
        if name not in columns:
            filler = np.nan if np.issubdtype(values.dtype, np.floating) else FILL.get(name, 0)
            columns[name] = np.full(values.shape, filler, dtype=values.dtype)
        if (values.dtype, values.shape) != (columns[name].dtype, columns[name].shape):
            raise WorkerError(
                f"rank {record.rank} sent {name} as {values.dtype} {values.shape}, "
                f"another owner as {columns[name].dtype} {columns[name].shape}"
            )
        columns[name][mine] = values[mine]


def _disagreements(
    records: Sequence[RankRecord], tensors: Mapping[int, Columns], columns: Columns, active: NDArray[np.bool_]
) -> tuple[dict[str, Any], ...]:
    found = []
    for record in records:
        values = tensors.get(record.rank, {}).get("selected_logprob")
        if record.role != "replica" or "selected_logprob" not in columns:
            continue
        if values is None:
            raise MissingRankError(f"rank {record.rank} is a replica and sent no selected_logprob")
        _check_ranges(record, len(active))
        if values.shape != active.shape:
            raise WorkerError(f"rank {record.rank} sent selected_logprob with shape {values.shape}, not {active.shape}")
        where = np.zeros(len(active), dtype=np.bool_)
        for start, stop in record.ranges or ((0, len(active)),):
            where[start:stop] = True
        where &= active
        first = values[where].astype(np.float64)
        second = columns["selected_logprob"][where].astype(np.float64)
        differ = ~((first == second) | (np.isnan(first) & np.isnan(second)))
        if bool(differ.any()):
            gap = np.abs(first - second)[differ]
            largest = float(np.max(gap)) if bool(np.isfinite(gap).all()) else None
            found.append({"rank": record.rank, "tokens": int(differ.sum()), "max_abs": largest})
    return tuple(found)

"""The table of a dump as tensors and back, with the mask held against the values and the recorded counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xcfg.dumps.redact import is_redacted
from xcfg.dumps.table import SCORE_COLUMNS, DumpTable
from xcfg.schema.kept import KeptComparison

Tensors = dict[str, NDArray[Any]]

REQUIRED = {
    "logp_train": ("float32", "float64"),
    "logp_rollout": ("float32", "float64"),
    "active": ("bool",),
    "token_id": ("int64",),
    "position": ("int64",),
    "offsets": ("int64",),
    "weight_version": ("int32",),
}
OPTIONAL = {
    "rank": ("int16",),
    **dict.fromkeys(
        SCORE_COLUMNS, ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
    ),
}


def tensors_of(table: DumpTable) -> Tensors:
    """Return what a comparison was made of, as it was: float32 or float64 scores, ids, mask, columns."""
    found: Tensors = {
        "logp_train": table.training,
        "logp_rollout": table.rollout,
        "active": table.active,
        "token_id": table.token_ids,
        "position": table.positions,
        "offsets": table.offsets,
        "weight_version": table.weight_version,
        **table.columns,
    }
    if table.rank is not None:
        found["rank"] = table.rank
    return {name: np.ascontiguousarray(values) for name, values in found.items()}


def active_per_sequence(table: DumpTable) -> tuple[int, ...]:
    """Return the number of active tokens of every sequence."""
    seen = np.concatenate(([0], np.cumsum(table.active)))
    return tuple(np.diff(seen[table.offsets]).tolist())


def table_from(tensors: Tensors, record: KeptComparison) -> tuple[DumpTable | None, list[str]]:
    """Return the table that `tensors_of` took apart, and every fault; without a table when it cannot be made.

    The mask is computed again: a token may be active only after the first position and where both sides are
    finite, and the active tokens of every sequence are counted.
    """
    faults = _shape_faults(tensors, len(record.sample_ids))
    if faults:
        return None, faults
    table = DumpTable(
        training=tensors["logp_train"],
        rollout=tensors["logp_rollout"],
        active=tensors["active"],
        token_ids=tensors["token_id"],
        positions=tensors["position"],
        offsets=tensors["offsets"],
        sample_ids=record.sample_ids,
        weight_version=tensors["weight_version"],
        rank=tensors.get("rank"),
        columns={name: tensors[name] for name in SCORE_COLUMNS if name in tensors},
        dtypes=record.dtypes,
        unattested=record.unattested,
    )
    return table, _mask_faults(table, record)


def _shape_faults(tensors: Tensors, sequences: int) -> list[str]:
    known = {**REQUIRED, **OPTIONAL}
    faults = [f"the column {name!r} is missing" for name in REQUIRED if name not in tensors]
    for name, values in sorted(tensors.items()):
        if name not in known:
            faults.append(f"the column {name!r} is none that is kept")
        elif str(values.dtype) not in known[name]:
            faults.append(f"the column {name!r} is {values.dtype}")
    if faults:
        return faults
    offsets = tensors["offsets"]
    if offsets.shape != (sequences + 1,) or offsets[0] != 0 or bool((np.diff(offsets) <= 0).any()):
        return [f"offsets do not divide the tokens into {sequences} sequences"]
    total = int(offsets[-1])
    return [
        f"the column {name!r} has shape {values.shape}, not ({total},)"
        for name, values in sorted(tensors.items())
        if name != "offsets" and values.shape != (total,)
    ]


def _mask_faults(table: DumpTable, record: KeptComparison) -> list[str]:
    faults = []
    sequence = np.repeat(np.arange(len(table.sample_ids)), np.diff(table.offsets))
    if bool((np.diff(table.positions)[np.diff(sequence) == 0] <= 0).any()) or bool((table.positions < 0).any()):
        faults.append("positions do not rise within a sequence")
    if bool((table.active & (table.positions == 0)).any()):
        faults.append("the mask marks a first position, which has no logits before it")
    if bool((table.active & ~(np.isfinite(table.training) & np.isfinite(table.rollout))).any()):
        faults.append("the mask marks a token without two finite log probabilities")
    counted = active_per_sequence(table)
    odd = [index for index, (a, b) in enumerate(zip(counted, record.active_tokens, strict=False)) if a != b]
    if len(counted) != len(record.active_tokens) or odd:
        faults.append(f"the mask has other active tokens per sequence than kept.json says, first in sequence {odd[:1]}")
    if record.redacted and not all(map(is_redacted, table.sample_ids)):
        faults.append("kept.json says that it is redacted, and a sample id is no hash")
    return faults

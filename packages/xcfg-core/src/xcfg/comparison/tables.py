"""What the comparator takes: one table of scores per arm, and what can be wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xcfg.identity.rollout import Rollout
from xcfg.schema.names import Arm

Floats = NDArray[np.float32] | NDArray[np.float64]
SCORE_DTYPES = ("float32", "float64")
LARGEST_LOGIT = 256.0
"""Magnitude of logits up to which rounding is allowed for; those of published models stay below 100."""
FRACTION_BITS = {"bfloat16": 7, "float16": 10, "float32": 10, "float64": 10}
"""Stored fraction bits of the numbers that a logit is rounded to; float32 products may run in TF32, which has 10."""
COARSEST = FRACTION_BITS["bfloat16"]


@dataclass(frozen=True)
class ScoreTable:
    """One arm's scores over the T flat tokens of a frozen rollout.

    arm: its name. compute_dtype: input dtype of the decoder blocks' matmuls as observed, empty when
    unobserved. logprob: float32 or float64 [T], nats, exactly as stored. active: bool [T]. columns: optional
    columns of the score (`phase`: int8 [T]). owner_rank: int16 [T], the rank that scored the token, -1 for
    none.
    """

    arm: str
    compute_dtype: str
    logprob: Floats
    active: NDArray[np.bool_]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    owner_rank: NDArray[np.int16] | None = None


def structural_faults(table: ScoreTable, rollout: Rollout, *, subset: bool = False) -> list[str]:
    """Return why `table` is no score of `rollout`; empty when it has the right dtype, shape and mask.

    subset: the table may score only some of the active tokens (a reference over a sample of sequences).
    """
    total = len(rollout.active)
    faults = []
    if str(table.logprob.dtype) not in SCORE_DTYPES:
        faults.append(f"{table.arm} logprob is {table.logprob.dtype}, not float32 or float64")
    if table.logprob.shape != (total,):
        faults.append(f"{table.arm} logprob has shape {table.logprob.shape}, not ({total},)")
    if table.active.dtype != np.bool_:
        faults.append(f"{table.arm} active mask is {table.active.dtype}, not bool")
    elif table.active.shape != (total,):
        faults.append(f"{table.arm} active mask has shape {table.active.shape}, not ({total},)")
    else:
        faults += _mask_faults(table, rollout, subset)
    for name, array in (("owner_rank", table.owner_rank), ("phase", table.columns.get("phase"))):
        if array is not None and (array.shape != (total,) or array.dtype.kind not in "iu"):
            faults.append(f"{table.arm} {name} is {array.dtype} {array.shape}, not an integer per token")
    return faults


def _mask_faults(table: ScoreTable, rollout: Rollout, subset: bool) -> list[str]:
    extra = int(np.count_nonzero(table.active & ~rollout.active))
    missing = 0 if subset else int(np.count_nonzero(rollout.active & ~table.active))
    if not extra and not missing:
        return []
    return [f"{table.arm} active mask is not the rollout's: {missing} active tokens missing, {extra} extra"]


def not_finite(table: ScoreTable, mask: NDArray[np.bool_]) -> str:
    """Return how many scores under `mask` are NaN or infinite, and the first; empty when none is."""
    bad = np.flatnonzero(mask & ~np.isfinite(table.logprob))
    if not len(bad):
        return ""
    first = int(bad[0])
    return (
        f"{table.arm} has {len(bad)} active scores that are not finite, the first at flat index {first}: "
        f"{float(table.logprob[first])!r}"
    )


def highest(compute_dtype: str) -> float:
    """Return the largest value that rounding can give a log probability, nats; raw logits lie above it.

    log p = logit - LSE is at most 0, and a kernel that takes both from the same logits returns at most 0, for rounding
    is monotone. One that rounds the logit and not the LSE, as fused cross entropies do, is off by half a unit in the
    last place of the logit: measured on 4,096 nearly certain tokens each, 0.5 in bfloat16, 0.0625 in float16 and 8e-6
    in float32 at logits of 250. Twice that, one unit in the last place below LARGEST_LOGIT, is the bound: 1.0 nats in
    bfloat16, and wherever the dtype was not observed, and 0.125 in the others.
    """
    return LARGEST_LOGIT / 2.0 * 2.0 ** -FRACTION_BITS.get(compute_dtype, COARSEST)


def above_zero(table: ScoreTable, mask: NDArray[np.bool_]) -> str:
    """Return how many scores under `mask` are no log probabilities, for they lie above `highest`; else empty."""
    bound = highest(table.compute_dtype)
    bad = np.flatnonzero(mask & (table.logprob > bound))
    if not len(bad):
        return ""
    first = int(bad[0])
    return (
        f"{table.arm} has {len(bad)} active scores above {bound:g} nats, which no rounding of a log probability gives "
        f"(raw logits?), the first at flat index {first}: {float(table.logprob[first])!r}"
    )


def recorded_table(rollout: Rollout) -> ScoreTable | None:
    """Return the log probabilities recorded at sampling as a table; its compute dtype is unobserved.

    Active tokens for which nothing was recorded are left out of its mask.
    """
    recorded = rollout.tensors.get("recorded_logprob")
    if recorded is None:
        return None
    values: NDArray[np.float32] = recorded.astype(np.float32, copy=False)
    return ScoreTable(
        arm=Arm.RECORDED.value, compute_dtype="", logprob=values, active=rollout.active & ~np.isnan(values)
    )

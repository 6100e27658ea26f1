"""Which edges a set of arms has, over which tokens, and what each edge is held to (contract, section 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xcfg.comparison.tables import ScoreTable, above_zero, not_finite
from xcfg.identity.rollout import Rollout
from xcfg.schema.contract import Contract
from xcfg.schema.names import Arm, Phase, Status

VERDICT_EDGE = "training_vs_rollout"
TRAINING, PREFILL, DECODE, RECORDED = (
    Arm.TRAINING.value,
    Arm.ROLLOUT_PREFILL.value,
    Arm.ROLLOUT_DECODE.value,
    Arm.RECORDED.value,
)
ROLLOUT_ARMS = (PREFILL, DECODE, RECORDED)
PAIRS = (
    ("training_vs_rollout_prefill", TRAINING, PREFILL),
    ("rollout_prefill_vs_decode", PREFILL, DECODE),
    ("training_vs_recorded", TRAINING, RECORDED),
    ("decode_vs_recorded", DECODE, RECORDED),
)


@dataclass(frozen=True)
class Edge:
    """One edge, d = first - second over `mask` (bool [T]).

    status: Status.PASS while nothing forbids a judgement, else why there is none; reason says it in words.
    measurable: whether figures can be computed although there may be no judgement.
    """

    name: str
    first: ScoreTable
    second: ScoreTable
    mask: NDArray[np.bool_]
    threshold: float | None
    compute_dtype: str
    status: Status
    reason: str
    measurable: bool

    @property
    def by_probability_of(self) -> ScoreTable:
        """The table whose probability names a token's bucket: the rollout side, else the reference."""
        reference = self.name.endswith("_vs_reference") and self.first.arm in ROLLOUT_ARMS
        return self.first if reference else self.second


def plan_edges(
    tables: Mapping[str, ScoreTable],
    reference: ScoreTable | None,
    rollout: Rollout,
    contract: Contract,
    verdict_arm: str,
    faults: Mapping[str, list[str]],
) -> Iterator[Edge]:
    """Yield every edge whose two arms are there, the verdict first; faults: arm -> what is wrong."""
    pairs = [(VERDICT_EDGE, TRAINING, verdict_arm), *PAIRS]
    for name, first, second in pairs:
        if first in tables and second in tables:
            if name != VERDICT_EDGE and (first, second) == (TRAINING, RECORDED) and verdict_arm == RECORDED:
                continue
            yield _edge(name, tables[first], tables[second], rollout, contract, faults)
    if reference is not None:
        for arm in (TRAINING, *ROLLOUT_ARMS):
            if arm in tables:
                yield _edge(f"{arm}_vs_reference", tables[arm], reference, rollout, contract, faults)


def _edge(
    name: str,
    first: ScoreTable,
    second: ScoreTable,
    rollout: Rollout,
    contract: Contract,
    faults: Mapping[str, list[str]],
) -> Edge:
    broken = [text for table in (first, second) for text in faults.get(table.arm, [])]
    mask, reason = rollout.active, ""
    if not broken:
        mask, reason = _mask(name, first, second, rollout)
    status, why = _standing(first, second, mask, reason, broken, contract)
    return Edge(
        name=name,
        first=first,
        second=second,
        mask=mask,
        threshold=contract.threshold(first.compute_dtype, second.compute_dtype),
        compute_dtype=contract.coarsest(first.compute_dtype, second.compute_dtype) or "",
        status=status,
        reason=why,
        measurable=status in (Status.PASS, Status.UNOBSERVABLE, Status.NOT_COMPARABLE) and bool(mask.any()),
    )


def _mask(name: str, first: ScoreTable, second: ScoreTable, rollout: Rollout) -> tuple[NDArray[np.bool_], str]:
    """Return the tokens of an edge, and a note where they are fewer than the active tokens."""
    if name == VERDICT_EDGE:
        return rollout.active, ""
    mask = rollout.active & first.active & second.active
    for table in (first, second):
        if table.arm == RECORDED:
            mask &= ~np.isnan(table.logprob)
    if (first.arm, second.arm) == (PREFILL, DECODE):
        phase = second.columns.get("phase")
        mask = np.zeros_like(mask) if phase is None else mask & (phase == Phase.DECODE.value)
        return (
            mask,
            "" if phase is not None else "rollout_decode has no column 'phase', so no token is known as decoded",
        )
    left = int(np.count_nonzero(rollout.active)) - int(np.count_nonzero(mask))
    return mask, f"{left} active tokens have no value in both arms and are left out" if left else ""


def _standing(
    first: ScoreTable,
    second: ScoreTable,
    mask: NDArray[np.bool_],
    reason: str,
    broken: list[str],
    contract: Contract,
) -> tuple[Status, str]:
    """Return whether the edge can be judged, in the precedence of the contract."""
    if broken:
        return Status.INVALID_ARTIFACT, "; ".join(broken)
    if not mask.any():
        return Status.ZERO_ACTIVE_TOKENS, reason or "no active token is left to compare"
    for fault in (not_finite, above_zero):
        spoilt = [text for text in (fault(table, mask) for table in (first, second)) if text]
        if spoilt:
            return Status.INVALID_ARTIFACT, "; ".join(spoilt)
    unseen = [table.arm for table in (first, second) if not table.compute_dtype]
    if unseen:
        return Status.UNOBSERVABLE, f"the compute dtype of {' and '.join(unseen)} was not observed"
    if contract.threshold(first.compute_dtype, second.compute_dtype) is None:
        pair = f"{first.compute_dtype} and {second.compute_dtype}"
        return Status.NOT_COMPARABLE, f"contract {contract.version} has no log-probability entry for {pair}"
    return Status.PASS, reason

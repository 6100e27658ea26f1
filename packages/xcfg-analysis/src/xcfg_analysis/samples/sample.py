"""From rows of the cube to samples: the figures by which objectives judge, per sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xcfg.schema.names import Assessment, Status

from xcfg_analysis.cube.load import Bool, Evidence, Int
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.samples.interval import Float

TOKENS, SQUARES, K3 = range(3)
"""Columns of Sample.sums."""


@dataclass(frozen=True)
class Sample:
    """What one scoring of one case gave on its verdict edge.

    sums: float64 [S, 3], per sequence the active tokens, the sum of d^2 (nats^2) and of exp(d) - 1 - d; NaN where
    it is not known. budgets: rms error of plain implementations on (training, rollout), nats. bits: what is equal
    when the scores are equal bit for bit.
    """

    case_id: str
    status: str
    reason: str
    threshold: float | None
    max_abs: float | None
    assessment: str
    budgets: tuple[float | None, float | None]
    sums: Float
    seconds: float = 0.0
    bits: str = ""

    @property
    def measured(self) -> bool:
        """Whether there are figures and a verdict."""
        return self.status in (Status.PASS.value, Status.MISMATCH.value) and self.max_abs is not None


def sample(row: Row, evidence: Evidence | None = None) -> Sample:
    """Return what a row says. Without evidence the sums come from the figures by sequence, and k3 is not known."""
    edge = row.edges.get(row.verdict_edge)
    found = evidence.difference(row, row.verdict_edge) if evidence is not None and edge is not None else None
    if evidence is not None and found is not None:
        sums = _from_tokens(found[0], evidence.sequence, found[1], evidence.sequences)
    else:
        sums = _from_groups(row)
    assessed = row.assessment
    return Sample(
        case_id=row.case_id,
        status=row.status,
        reason=row.reason,
        threshold=row.threshold,
        max_abs=None if edge is None else edge.max_abs,
        assessment=Assessment.NO_REFERENCE.value if assessed is None else assessed.assessment,
        budgets=(None, None) if assessed is None else (assessed.b_training, assessed.b_rollout),
        sums=sums,
        seconds=row.seconds.get("score", 0.0),
        bits=" ".join(row.arms[arm].digest for arm in ("training", row.verdict_arm) if arm in row.arms),
    )


def _from_tokens(d: Float, sequence: Int, mask: Bool, count: int) -> Float:
    """Return float64 [S, 3] from d float64 [T] (0 outside mask), its sequences int64 [T] and mask bool [T]."""
    with np.errstate(over="ignore", invalid="ignore"):
        terms = (mask.astype(np.float64), d * d, np.expm1(d) - d)
    sums: Float = np.stack([np.bincount(sequence, term, minlength=count) for term in terms], axis=1)
    return sums


def _from_groups(row: Row) -> Float:
    groups = row.edges[row.verdict_edge].by_sequence if row.verdict_edge in row.edges else ()
    sums = np.zeros((1 + max((int(item.group) for item in groups), default=-1), 3))
    for item in groups:
        sums[int(item.group)] = (item.active_tokens, item.rms**2 * item.active_tokens, np.nan)
    return sums

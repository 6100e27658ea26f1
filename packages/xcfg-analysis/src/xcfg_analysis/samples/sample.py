"""From rows of the cube to samples: the figures by which objectives judge, per sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xcfg.schema.names import Assessment, Status
from xcfg.schema.result import AssessmentResult

from xcfg_analysis.cube.load import Evidence, Float
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.effects.effect import verdict_sums

TOKENS, SQUARES, SIZES, K3 = range(4)
"""Columns of Sample.sums, as in effects.per_sequence."""


@dataclass(frozen=True, eq=False)
class Sample:
    """What one scoring of one case gave on its verdict edge.

    sums: float64 [S, 4], per sequence the active tokens and the sums of d^2 (nats^2), |d| and exp(d) - 1 - d; NaN where
    that is not known. budgets: rms error of plain implementations on (training, rollout), nats. bits: what is equal
    when the scores are equal bit for bit. lesser: the assessment by the production point's budget, where it is smaller.
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
    lesser: AssessmentResult | None = None

    @property
    def measured(self) -> bool:
        """Whether there are figures and a verdict."""
        return self.status in (Status.PASS.value, Status.MISMATCH.value) and self.max_abs is not None


def sample(row: Row, evidence: Evidence | None = None) -> Sample:
    """Return what a row says. Without evidence the sums come from the figures by sequence, and k3 is not known."""
    edge = row.edges.get(row.verdict_edge)
    known = verdict_sums(evidence, row) if evidence is not None else None
    sums = _from_groups(row) if known is None else known
    assessed = row.assessment
    ground = None if evidence is None else evidence.cube.baseline
    wider = ground is not None and is_wider(budgets(row), budgets(ground))
    return Sample(
        case_id=row.case_id,
        status=row.status,
        reason=row.reason,
        threshold=row.threshold,
        max_abs=None if edge is None else edge.max_abs,
        assessment=Assessment.NO_REFERENCE.value if assessed is None else assessed.assessment,
        budgets=budgets(row),
        sums=sums,
        seconds=row.seconds.get("score", 0.0),
        bits=" ".join(row.arms[arm].digest for arm in ("training", row.verdict_arm) if arm in row.arms),
        lesser=evidence.assess_by(row, ground) if wider and evidence is not None and ground is not None else None,
    )


def budgets(row: Row) -> tuple[float | None, float | None]:
    """Return the precision budgets of a row, nats: (training, rollout); None where there is none."""
    assessed = row.assessment
    return (None, None) if assessed is None else (assessed.b_training, assessed.b_rollout)


def is_wider(mine: tuple[float | None, float | None], its: tuple[float | None, float | None]) -> bool:
    """Whether a budget allows more than another one on a side, beyond the rounding of the figure."""
    pairs = zip(mine, its, strict=True)
    return any(a is not None and b is not None and a > b * (1.0 + 1e-9) for a, b in pairs)


def _from_groups(row: Row) -> Float:
    groups = row.edges[row.verdict_edge].by_sequence if row.verdict_edge in row.edges else ()
    sums = np.zeros((1 + max((int(item.group) for item in groups), default=-1), 4))
    for item in groups:
        count = item.active_tokens
        sums[int(item.group)] = (count, item.rms**2 * count, item.mean_abs * count, np.nan)
    return sums

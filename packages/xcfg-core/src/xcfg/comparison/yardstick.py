"""The assessment of a case by the smaller of two precision budgets: its own and that of the production point.

A coarser dtype has a larger budget, and would be explained by being allowed more. On each side the plain errors of
whichever case has the smaller b stand in, sequence by sequence, and are resampled together with the errors of the case
as in assessment.py; so the intervals are those of that budget, not a rescaling of others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xcfg.comparison.assessment import PLAIN, TOKENS, Ratios, judge_budget, no_reference
from xcfg.comparison.budget import find_budget
from xcfg.comparison.exact import Float
from xcfg.comparison.layout import layout_of
from xcfg.comparison.tables import ScoreTable
from xcfg.identity.rollout import Rollout
from xcfg.schema.contract import AssessmentRule
from xcfg.schema.names import Arm
from xcfg.schema.result import AssessmentResult

Tables = tuple[Mapping[str, ScoreTable], Mapping[str, ScoreTable], str]
"""Arms by name, the tables of the budget by key, and the verdict arm."""


def assess_by(case: Tables, ground: Tables, rollout: Rollout, rule: AssessmentRule) -> AssessmentResult:
    """Return the assessment of `case` by the smaller of its own and `ground`'s budget, on each side apart.

    NO_REFERENCE, with the reason, where either has no budget or they were scored on other tokens.
    """
    layout = layout_of(rollout)
    found = []
    for arms, reference, verdict_arm in (case, ground):
        budget = find_budget(arms[Arm.TRAINING.value], arms[verdict_arm], reference, layout)
        if isinstance(budget, str):
            return no_reference(budget)
        found.append((budget.sums(layout), budget.reference))
    (mine, precise), (its, _) = found
    if not len(mine) or not np.array_equal(mine[:, TOKENS], its[:, TOKENS]):
        return no_reference("the two budgets were scored on other tokens")
    dtype = precise.compute_dtype or str(precise.logprob.dtype)
    return judge_budget(with_lesser(mine, its), rule, dtype, rollout.sequence_count)


def with_lesser(mine: Float, its: Float) -> Float:
    """Return the sums `mine`, float64 [S, 9], with the plain errors of `its` on every side where its b is smaller."""
    sums = mine.copy()
    own, other = (Ratios.of(item.sum(axis=0, keepdims=True)) for item in (mine, its))
    for name, start in (("b_training", PLAIN), ("b_rollout", PLAIN + 2)):
        if float(getattr(other, name)[0]) < float(getattr(own, name)[0]):
            sums[:, start : start + 2] = its[:, start : start + 2]
    return sums

"""What settings do together beyond what each does alone, from cells of a pairwise or product grid.

    (both - second) - (first - baseline), of mean d^2 per token, paired by sequence

Squared errors of independent origins add, so that without an interaction this is 0. The rows of a covering array change
more than two settings: there it is the row less all its single changes, the sum of what every pair in it, and every
larger group, does. Which of them it is such a row cannot tell; a row whose pairs all have cells of their own is left
out, since those say more.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from xcfg.schema.analysis import Interaction
from xcfg.schema.result import Interval

from xcfg_analysis.cube.load import Evidence, Float
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.effects.bootstrap import Estimate, draws_for, estimates
from xcfg_analysis.effects.effect import verdict_sums
from xcfg_analysis.effects.holm import adjusted
from xcfg_analysis.effects.per_sequence import QUANTITIES, is_same_tokens

SQUARES = QUANTITIES.index("mean_sq") + 1


def interactions(
    evidence: Evidence, baseline: Row, rows: Sequence[Row], floor: float | None
) -> tuple[Interaction, ...]:
    """Return the interaction of every cell whose single changes were measured too.

    floor: the resolution of mean d^2, two of which enter for every change. Holm's correction is over all of them.
    """
    rule = evidence.run.contract.assessment
    ground = verdict_sums(evidence, baseline)
    if ground is None or int(np.count_nonzero(ground[:, 0])) < rule.min_sequences:
        return ()
    usable = {_cell(row.delta): row for row in rows if not row.outside}
    found: list[tuple[Row, list[Row], tuple[tuple[str, str], ...]]] = []
    columns: list[Float] = []
    for row in usable.values():
        singles = [usable.get(_cell({key: value})) for key, value in row.delta.items()]
        measured = [item for item in singles if item is not None]
        pairs = tuple(itertools.combinations(row.delta, 2))
        if len(row.delta) < 2 or len(measured) < len(singles):
            continue
        if len(pairs) > 1 and all(_cell({key: row.delta[key] for key in pair}) in usable for pair in pairs):
            continue
        sums = [item for item in (verdict_sums(evidence, each) for each in (row, *measured)) if item is not None]
        if len(sums) <= len(measured) or any(not is_same_tokens(item, ground) for item in sums):
            continue
        alone = sum(item[:, SQUARES] - ground[:, SQUARES] for item in sums[1:])
        contrast = sums[0][:, SQUARES] - ground[:, SQUARES] - alone
        if bool(np.isfinite(contrast).all()):
            found.append((row, measured, pairs if len(pairs) > 1 else ()))
            columns.append(contrast)
    if not columns:
        return ()
    draws = draws_for(len(columns), rule.level)
    values = estimates(np.stack(columns, axis=1), ground[:, 0], level=rule.level, seed=rule.seed, draws=draws)
    corrected = adjusted([value.p for value in values])
    return tuple(
        Interaction(
            knobs=tuple(row.delta),
            cases=(row.case_id, *(item.case_id for item in singles), baseline.case_id),
            change=Interval(value=value.value, low=value.low, high=value.high) if value.bounded else None,
            p_value=value.p,
            p_adjusted=p,
            outcome=_outcome(value, p, 1.0 - rule.level, None if floor is None else 2 * len(singles) * floor),
            among=among,
        )
        for (row, singles, among), value, p in zip(found, values, corrected, strict=True)
    )


def _cell(delta: dict[str, Any]) -> str:
    return json.dumps(delta, sort_keys=True)


def _outcome(found: Estimate, p: float, alpha: float, limit: float | None) -> str:
    if not found.bounded:
        return "INSUFFICIENT_EVIDENCE"
    if limit is not None and 0 < abs(found.value) <= limit:
        return "BELOW_RESOLUTION"
    return "INTERACTION" if p <= alpha else "NONE_SHOWN"

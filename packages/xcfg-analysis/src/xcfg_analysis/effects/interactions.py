"""What two settings do together beyond what each does alone, from cells of a pairwise or product grid.

    (both - second) - (first - baseline), of mean d^2 per token, paired by sequence

Squared errors of independent origins add, so that without an interaction this is 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from xcfg.schema.analysis import Interaction
from xcfg.schema.result import Interval

from xcfg_analysis.cube.load import Evidence, Float
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.effects.bootstrap import draws_for, estimates
from xcfg_analysis.effects.effect import verdict_sums
from xcfg_analysis.effects.holm import adjusted
from xcfg_analysis.effects.per_sequence import QUANTITIES, is_same_tokens

SQUARES = QUANTITIES.index("mean_sq") + 1


def interactions(
    evidence: Evidence, baseline: Row, rows: Sequence[Row], floor: float | None
) -> tuple[Interaction, ...]:
    """Return the interaction of every cell that changes two axes and whose two single changes were measured too.

    floor: the resolution of mean d^2, four of which enter. Holm's correction is over all of them.
    """
    rule = evidence.run.contract.assessment
    ground = verdict_sums(evidence, baseline)
    if ground is None or int(np.count_nonzero(ground[:, 0])) < rule.min_sequences:
        return ()
    usable = {_cell(row.delta): row for row in rows if not row.outside}
    found: list[tuple[Row, Row, Row]] = []
    columns: list[Float] = []
    for row in usable.values():
        if len(row.delta) != 2:
            continue
        first, second = (usable.get(_cell({key: value})) for key, value in row.delta.items())
        if first is None or second is None:
            continue
        sums = [verdict_sums(evidence, item) for item in (row, first, second)]
        if any(item is None or not is_same_tokens(item, ground) for item in sums):
            continue
        both, one, other = (item[:, SQUARES] for item in sums if item is not None)
        contrast = (both - other) - (one - ground[:, SQUARES])
        if bool(np.isfinite(contrast).all()):
            found.append((row, first, second))
            columns.append(contrast)
    if not columns:
        return ()
    draws = draws_for(len(columns), rule.level)
    values = estimates(np.stack(columns, axis=1), ground[:, 0], level=rule.level, seed=rule.seed, draws=draws)
    corrected = adjusted([value.p for value in values])
    return tuple(
        Interaction(
            knobs=tuple(row.delta),
            cases=(row.case_id, first.case_id, second.case_id, baseline.case_id),
            change=Interval(value=value.value, low=value.low, high=value.high) if value.bounded else None,
            p_value=value.p,
            p_adjusted=p,
            outcome=_outcome(value.value, p, 1.0 - rule.level, value.bounded, floor),
        )
        for (row, first, second), value, p in zip(found, values, corrected, strict=True)
    )


def _cell(delta: dict[str, Any]) -> str:
    return json.dumps(delta, sort_keys=True)


def _outcome(value: float, p: float, alpha: float, bounded: bool, floor: float | None) -> str:
    if not bounded:
        return "INSUFFICIENT_EVIDENCE"
    if floor is not None and 0 < abs(value) <= 4 * floor:
        return "BELOW_RESOLUTION"
    return "INTERACTION" if p <= alpha else "NONE_SHOWN"

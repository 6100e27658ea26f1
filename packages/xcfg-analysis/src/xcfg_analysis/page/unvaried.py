"""What the two sides of a baseline do not share and no case of its run changes: a cause can lie there unseen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xcfg.schema.codec import canonical_json, plain
from xcfg.schema.names import Assessment, Side

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.effects.sides import side_of_key
from xcfg_analysis.rules.differences import find

SIDES = (Side.ROLLOUT.value, Side.TRAINING.value)
SUSPECTS = {Assessment.EXCESS_TRAINING.value: SIDES[1], Assessment.EXCESS_ROLLOUT.value: SIDES[0]}
"""Assessment -> the one side that it accuses; under any other both are suspect."""


def suspects(baseline: Row) -> tuple[str, ...]:
    """Return the sides on which a cause of the baseline's gap can lie, by its assessment."""
    word = baseline.assessment.assessment if baseline.assessment is not None else ""
    return (SUSPECTS[word],) if word in SUSPECTS else SIDES


def options_of_one_side(experiment: Mapping[str, Any], sides: tuple[str, ...]) -> tuple[str, ...]:
    """Return the runtime options that `sides` have and the other side has not, or has otherwise.

    experiment: as it was sealed. An option that both sides set alike, as a number of threads, is none of them.
    """
    given = experiment.get("runtime_options") or {}
    said = []
    for side in sides:
        mine, its = given.get(side) or {}, given.get(SIDES[1 - SIDES.index(side)]) or {}
        for name, value in sorted(mine.items()):
            if name not in its or its[name] != value:
                said.append(f"runtime_options.{side}.{name} = {canonical_json(value).decode()}")
    return tuple(said)


def settings_of_one_side(evidence: Evidence, baseline: Row, sides: tuple[str, ...]) -> dict[str, Any]:
    """Return axis key -> aligned value of the declared settings in which the sides differ and that no case varies."""
    varied = {key for row in evidence.cube.cases for key in row.delta}
    both = {key.partition("@")[0] for key in varied}
    found = find(evidence.planned(baseline), evidence.plugins.knobs(), {}).differences
    return {
        item.key: plain(item.aligned)
        for item in found
        if item.key not in varied and item.path not in both and _lies_on(item.key, evidence, sides)
    }


def _lies_on(key: str, evidence: Evidence, sides: tuple[str, ...]) -> bool:
    side = side_of_key(key, evidence.cube.definitions)
    return side not in SIDES or side in sides

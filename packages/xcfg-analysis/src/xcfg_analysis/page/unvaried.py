"""What the two sides of a baseline do not share and no case of its run changes: a cause can lie there unseen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xcfg.schema.codec import canonical_json, plain
from xcfg.schema.names import Assessment, Side
from xcfg.schema.plan import ExperimentCase

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.effects.sides import side_of_key
from xcfg_analysis.rules.differences import OPERATORS, find

NATIVE = "native"
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
            spelled = canonical_json(value)  # so that 1 is not true
            if name not in its or canonical_json(its[name]) != spelled:
                said.append(f"runtime_options.{side}.{name} = {spelled.decode()}")
    return tuple(said)


def settings_of_one_side(evidence: Evidence, baseline: Row, sides: tuple[str, ...]) -> dict[str, Any]:
    """Return axis key -> the other side's value of the declared settings of `sides` that no case varies."""
    planned = evidence.planned(baseline)
    found = {item.key: plain(item.aligned) for item in find(planned, evidence.plugins.knobs(), {}).differences}
    knobs = {key: value for key, value in found.items() if not key.startswith(OPERATORS)}
    said = {key: value for key, value in knobs.items() if _is_suspect(key, evidence, baseline, sides)}
    said |= _operators(planned, sides)
    varied = {key for row in evidence.cube.cases for key in row.delta}
    varied |= {key.partition("@")[0] for key in varied}
    return {key: value for key, value in said.items() if not {key, key.partition("@")[0]} & varied}


def _is_suspect(key: str, evidence: Evidence, baseline: Row, sides: tuple[str, ...]) -> bool:
    """Whether a knob acts on `sides`, or the baseline names its counterpart, which does."""
    definitions = evidence.cube.definitions
    group = definitions.get(key.partition("@")[0], {}).get("group")
    partners = [path for path in baseline.axes if group and definitions.get(path, {}).get("group") == group]
    return bool({side_of_key(path, definitions) for path in (key, *partners)} & {*sides, "both"})


def _operators(planned: ExperimentCase, sides: tuple[str, ...]) -> dict[str, str]:
    """Return the operators of `sides` that are not the engine's own while the other side's is another."""
    said = {}
    for operation, choices in planned.operators.items():
        for side in sides:
            mine, its = choices[side], choices[SIDES[1 - SIDES.index(side)]]
            if mine.backend != NATIVE and mine != its:
                said[f"{OPERATORS}{operation}.{side}"] = its.backend
    return said

"""Constraints of the experiment and of the knobs: which cells are filtered, with what code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xcfg.planning.effective import Effective
from xcfg.planning.normalise import OPERATORS, Catalogue, normalise_value, same, show, split_key
from xcfg.schema._base import Value
from xcfg.schema.experiment import Experiment
from xcfg.schema.knobs import Constraint, KnobDefinition


@dataclass(frozen=True)
class Refusal:
    """Why a cell is no case."""

    code: str
    reason: str


@dataclass(frozen=True)
class Constraints:
    """All constraints that hold for one experiment, values canonical."""

    items: tuple[Constraint, ...]
    knobs: Mapping[str, KnobDefinition]

    def check(self, effective: Effective) -> Refusal | None:
        """Return the first constraint that the cell breaks, or None.

        `when` matches if any side's value does, `require` only if every side's value does, so a one-sided
        value cannot slip past. A knob that the cell does not ask for matches no `when`; for `require` its
        default counts, and without one the requirement is not met.
        """
        for item in self.items:
            if all(self._any(effective, key, values) for key, values in item.when.items()):
                unmet = [key for key, values in item.require.items() if not self._every(effective, key, values)]
                if unmet or not item.require:
                    return Refusal(item.code, item.reason or _reason(item, unmet))
        return None

    def _any(self, effective: Effective, key: str, values: tuple[Value, ...]) -> bool:
        return any(_among(held, values) for held in effective.value(key) or ())

    def _every(self, effective: Effective, key: str, values: tuple[Value, ...]) -> bool:
        held = effective.value(key)
        if held is None:
            knob = self.knobs.get(split_key(key)[0])
            held = () if knob is None or knob.default is None else (knob.default,)
        return bool(held) and all(_among(value, values) for value in held)


def build_constraints(experiment: Experiment, catalogue: Catalogue) -> Constraints:
    """Return the experiment's constraints (unknown paths are refused), then those of the knobs by name."""
    own = [_normalised(item, catalogue, f"$.constraints[{index}]") for index, item in enumerate(experiment.constraints)]
    theirs = [item for _, knob in sorted(catalogue.knobs.items()) for item in knob.constraints]
    return Constraints(items=(*own, *theirs), knobs=catalogue.knobs)


def _normalised(item: Constraint, catalogue: Catalogue, where: str) -> Constraint:
    def values(mapping: Mapping[str, tuple[Value, ...]], part: str) -> dict[str, tuple[Value, ...]]:
        result: dict[str, tuple[Value, ...]] = {}
        for key, listed in mapping.items():
            place = f"{where}.{part}.{key}"
            if key.startswith(OPERATORS):
                result[key] = listed
            else:
                knob, _ = catalogue.keyed(key, place)
                result[key] = tuple(
                    normalise_value(knob, value, source=catalogue.source, where=place) for value in listed
                )
        return result

    return Constraint(
        code=item.code,
        when=values(item.when, "when"),
        require=values(item.require, "require"),
        reason=item.reason,
    )


def _among(value: Value, values: tuple[Value, ...]) -> bool:
    return any(same(value, item) for item in values)


def _reason(item: Constraint, unmet: list[str]) -> str:
    when = " and ".join(f"{key} is {' or '.join(map(show, values))}" for key, values in sorted(item.when.items()))
    if not unmet:
        return f"not allowed: {when}"
    need = " and ".join(f"{key} must be {' or '.join(map(show, item.require[key]))}" for key in sorted(unmet))
    return f"where {when}, {need}"

"""Where the two sides of a baseline differ, and what makes them equal, from the knob definitions alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xcfg.schema._base import Value
from xcfg.schema.codec import canonical_json, plain
from xcfg.schema.knobs import Choice, IntRange, KnobDefinition
from xcfg.schema.names import SourceClass, Target
from xcfg.schema.plan import ExperimentCase

from xcfg_analysis.rules.classes import ARITHMETIC, OF_SOURCE

OPERATORS = "operators."


@dataclass(frozen=True)
class Difference:
    """One setting that production has and the aligned reference has not. key: as it stands in a delta.

    how: what the aligned value is, in words.
    """

    key: str
    path: str
    side: str | None
    of: str
    aligned: Any
    production: Any
    how: str


@dataclass
class Sides:
    """What was found. aligned: knob path -> value in A0. kept: path -> why it stays as production has it."""

    differences: list[Difference] = field(default_factory=list)
    aligned: dict[str, Value] = field(default_factory=dict)
    operators: dict[str, dict[str, Any]] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)


def find(baseline: ExperimentCase, knobs: Mapping[str, KnobDefinition], fixed: Mapping[str, Any]) -> Sides:
    """Return the differences of `baseline`. The training side's value is the aligned one where it has a counterpart.

    fixed: what the file holds fixed for every case; it is kept.
    """
    sides = Sides()
    held = {key.partition("@")[0] for key in fixed}
    paths = [key for key in baseline.knobs if "@" not in key]
    sides.aligned = {path: baseline.knobs[path] for path in paths}
    done: set[str] = set()
    for path in paths:
        definition = knobs.get(path)
        if definition is None or path in done:
            continue
        if definition.targets in (Target.BOTH, Target.KERNEL):
            _of_both(sides, baseline, definition, path in held)
            continue
        partner = _partner(definition, baseline, knobs)
        if partner is not None:
            done.add(partner.name)
            _of_pair(sides, baseline, definition, partner, held)
        elif path in held:
            sides.kept[path] = "the file holds it fixed"
        else:
            _alone(sides, baseline.knobs[path], definition, knobs)
    _of_operators(sides, baseline, fixed)
    return sides


def _of_both(sides: Sides, baseline: ExperimentCase, knob: KnobDefinition, fixed: bool) -> None:
    plain_value = baseline.knobs[knob.name]
    rollout = baseline.knobs.get(f"{knob.name}@rollout", plain_value)
    training = baseline.knobs.get(f"{knob.name}@training", plain_value)
    if _same(rollout, training):
        return
    if fixed:
        for side, value in (("rollout", rollout), ("training", training)):
            sides.aligned[f"{knob.name}@{side}"] = value
        sides.kept[knob.name] = "the file holds it fixed"
        return
    sides.aligned[knob.name] = training
    of = OF_SOURCE[knob.source_class.value]
    key = f"{knob.name}@rollout"
    sides.differences.append(Difference(key, knob.name, "rollout", of, training, rollout, "the training side's value"))


def _of_pair(
    sides: Sides, baseline: ExperimentCase, one: KnobDefinition, other: KnobDefinition, held: set[str]
) -> None:
    rollout, training = (one, other) if one.targets is Target.ROLLOUT else (other, one)
    r, t = baseline.knobs[rollout.name], baseline.knobs[training.name]
    said = {rollout.name: _spelling(rollout, r), training.name: _spelling(training, t)}
    vague = [name for name, spelling in said.items() if spelling is None]
    if vague:  # model_default: an engine's own choice, for which the other side, and perhaps the engine, has no name
        why = f"the value of {' and '.join(vague)} names nothing that the other side has; name one to align it"
        sides.kept[rollout.name] = sides.kept[training.name] = why
        return
    if said[rollout.name] == said[training.name]:
        return
    for taker, production, giver, value in ((rollout, r, training, t), (training, t, rollout, r)):
        found = _translated(giver, value, taker)
        if found is None or taker.name in held:
            continue
        sides.aligned[taker.name] = found
        of = OF_SOURCE[taker.source_class.value]
        told = f"the value of {giver.name}"
        sides.differences.append(Difference(taker.name, taker.name, None, of, found, production, told))
        return
    why = "the file holds it fixed" if {rollout.name, training.name} & held else "neither value has a counterpart"
    sides.kept[rollout.name] = sides.kept[training.name] = why


def _alone(sides: Sides, value: Value, knob: KnobDefinition, knobs: Mapping[str, KnobDefinition]) -> None:
    """Set a knob without a named partner to its plain value: the reference of its group, or else its default."""
    grouped = knob.align is not None and any(_is_partner(knob, item) for item in knobs.values())
    plain_value = knob.default
    if knob.source_class is SourceClass.REDUCTION and knob.align is not None and knob.align.reference is not None:
        plain_value = knob.align.reference
    elif grouped:
        sides.kept[knob.name] = "the file does not name its counterpart on the other side"
        return
    if plain_value is None:
        sides.kept[knob.name] = knob.not_alignable or "it has neither a counterpart nor a default"
    elif not _same(plain_value, value):
        sides.aligned[knob.name] = plain_value
        of = OF_SOURCE[knob.source_class.value]
        told = "its plain value, for the other side has no counterpart"
        sides.differences.append(Difference(knob.name, knob.name, None, of, plain_value, value, told))


def _of_operators(sides: Sides, baseline: ExperimentCase, fixed: Mapping[str, Any]) -> None:
    for operation, choices in baseline.operators.items():
        both = {side: _plain_choice(choice) for side, choice in choices.items()}
        key = f"{OPERATORS}{operation}.rollout"
        if canonical_json(both["rollout"]) == canonical_json(both["training"]):
            sides.operators[operation] = both
        elif any(name.startswith(f"{OPERATORS}{operation}.") for name in fixed):
            sides.operators[operation] = both
            sides.kept[f"{OPERATORS}{operation}"] = "the file holds it fixed"
        else:
            sides.operators[operation] = dict.fromkeys(both, both["training"])
            told = "the training side's backend"
            sides.differences.append(Difference(key, key, None, ARITHMETIC, both["training"], both["rollout"], told))


def _plain_choice(choice: Any) -> Any:
    return plain(choice) if choice.options else choice.backend


def _partner(
    knob: KnobDefinition, baseline: ExperimentCase, knobs: Mapping[str, KnobDefinition]
) -> KnobDefinition | None:
    """Return the one knob of the other side and the same group that the baseline names."""
    found = [item for name, item in knobs.items() if name in baseline.knobs and _is_partner(knob, item)]
    return found[0] if len(found) == 1 else None


def _is_partner(knob: KnobDefinition, item: KnobDefinition) -> bool:
    if knob.align is None or item.align is None or item.align.group != knob.align.group:
        return False
    return {knob.targets, item.targets} == {Target.ROLLOUT, Target.TRAINING}


def _translated(giver: KnobDefinition, value: Value, taker: KnobDefinition) -> Value:
    """Return the value of `taker` that means what `value` means for `giver`; None where it has none."""
    spelling = _spelling(giver, value)
    if spelling is None or taker.align is None:
        return None
    if taker.align.canonical:
        found: list[Value] = [json.loads(text) for text, name in taker.align.canonical.items() if name == spelling]
        return found[0] if found else None
    if isinstance(taker.domain, Choice):
        return next((item for item in taker.domain.values if _spelling(taker, item) == spelling), None)
    if isinstance(taker.domain, IntRange):
        return int(spelling) if spelling.lstrip("-").isdigit() else None
    return spelling


def _spelling(knob: KnobDefinition, value: Value) -> str | None:
    return None if knob.align is None else knob.align.spelling(value)


def _same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and bool(first == second)

"""`align` entries: which two knobs form one quantity, and what makes them equal.

A knob of both sides is its own partner (aligning it removes a one-sided difference). Otherwise the partner is
the other side's knob of the same `AlignSpec.group`, and values meet in the group's spelling.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from xcfg.errors import ConfigError
from xcfg.planning.effective import Pair
from xcfg.planning.normalise import SIDES, Catalogue, normalise_value, show, two_sided
from xcfg.schema._base import Value
from xcfg.schema.experiment import Align, Experiment
from xcfg.schema.knobs import Choice, KnobDefinition
from xcfg.schema.names import Target


@dataclass(frozen=True)
class Alignment:
    """One align entry, resolved: the knob of each side (the same one twice for a knob of both sides)."""

    path: str
    to: str
    rollout: KnobDefinition
    training: KnobDefinition
    where: str

    @property
    def label(self) -> str:
        """How the entry reads in a label."""
        return f"align {self.path} to {self.to}"

    @property
    def paths(self) -> tuple[str, ...]:
        """The knobs that the entry may change."""
        return tuple(sorted({self.rollout.name, self.training.name}))


def resolve_alignments(experiment: Experiment, catalogue: Catalogue, named: Collection[str]) -> tuple[Alignment, ...]:
    """Return the align entries with their partners. named: the paths that the experiment mentions.

    Raises ConfigError for a knob that cannot be aligned, with its reason.
    """
    resolved = []
    for index, entry in enumerate(experiment.align):
        where = f"$.align[{index}].path"
        knob = catalogue.knob(entry.path, where)
        resolved.append(_resolve(entry, knob, catalogue, named, where))
    return tuple(resolved)


def _resolve(entry: Align, knob: KnobDefinition, catalogue: Catalogue, named: Collection[str], where: str) -> Alignment:
    if knob.align is None:
        raise _refused(catalogue, knob.name, where, knob.not_alignable or "its package declares no value map")
    if two_sided(knob):
        return Alignment(entry.path, entry.to, knob, knob, where)
    other = "training" if knob.targets is Target.ROLLOUT else "rollout"
    members = [
        item
        for _, item in sorted(catalogue.knobs.items())
        if item.align is not None and item.align.group == knob.align.group and item.targets.value == other
    ]
    if len(members) > 1:
        members = [item for item in members if item.name in named] or members
    if len(members) != 1:
        names = ", ".join(repr(item.name) for item in members)
        found = f"{names} all belong to the group; name one in the baseline" if names else "there is none"
        raise _refused(catalogue, knob.name, where, f"of its group's knobs on the {other} side, {found}")
    pair = (knob, members[0]) if other == "training" else (members[0], knob)
    return Alignment(entry.path, entry.to, *pair, where)


def _refused(catalogue: Catalogue, name: str, where: str, reason: str) -> ConfigError:
    return ConfigError(
        f"NOT_ALIGNABLE: {name!r} cannot be aligned: {reason}",
        source=catalogue.source,
        path=where,
        hint="`xcfg knobs list` shows which knobs have an align group; vary the value of one side instead.",
    )


def aligned(alignment: Alignment, knobs: Mapping[str, Pair], source: str) -> dict[str, Pair]:
    """Return the pairs that make the group equal, given the cell's other values. Raises ConfigError."""
    rollout, training, to = alignment.rollout, alignment.training, alignment.to
    if to == "reference":
        values = _reference(alignment, rollout, source), _reference(alignment, training, source)
    elif to == "rollout":
        value = knobs[rollout.name][0]
        values = value, _translate(alignment, value, rollout, training, source)
    else:
        value = knobs[training.name][1]
        values = _translate(alignment, value, training, rollout, source), value
    if rollout.name == training.name:
        return {rollout.name: values}
    return {rollout.name: (values[0], values[0]), training.name: (values[1], values[1])}


def _reference(alignment: Alignment, knob: KnobDefinition, source: str) -> Value:
    if knob.align is None or knob.align.reference is None:
        raise ConfigError(
            f"NOT_ALIGNABLE: {knob.name!r} has no reference value",
            source=source,
            path=alignment.where,
            hint=f"Align to one of the sides: {', '.join(SIDES)}.",
        )
    return normalise_value(knob, knob.align.reference, source=source, where=alignment.where)


def _translate(alignment: Alignment, value: Value, giver: KnobDefinition, taker: KnobDefinition, source: str) -> Value:
    if giver.name == taker.name:
        return value
    spelling = None if giver.align is None else giver.align.spelling(value)
    translated = None if spelling is None else _from_spelling(taker, spelling)
    if translated is None:
        raise ConfigError(
            f"NOT_ALIGNABLE: {show(value)!r} of {giver.name!r} has no counterpart in {taker.name!r}",
            source=source,
            path=alignment.where,
            hint=f"Give {giver.name!r} a value that both sides have, or align to the other side.",
        )
    return translated


def _from_spelling(knob: KnobDefinition, spelling: str) -> Value:
    """Return the value of `knob` whose group spelling is `spelling`; None where it has none."""
    if knob.align is not None and knob.align.canonical:
        found = [text for text, name in sorted(knob.align.canonical.items()) if name == spelling]
        candidates: list[Value] = [json.loads(text) for text in found]
    elif isinstance(knob.domain, Choice):
        align = knob.align
        candidates = [item for item in knob.domain.values if align is not None and align.spelling(item) == spelling]
    else:
        candidates = [spelling, *_number(spelling)]
    for candidate in candidates:
        try:
            return normalise_value(knob, candidate)
        except ConfigError:
            continue
    return None


def _number(spelling: str) -> list[Value]:
    """Return the number that `spelling` is the JSON text of, if it is one."""
    try:
        value = json.loads(spelling)
    except ValueError:
        return []
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else []

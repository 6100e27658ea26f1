"""The part of a case that one side sees, and whether a runtime can honour it."""

from __future__ import annotations

from collections.abc import Mapping

from xcfg.schema._base import Value
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Lifecycle, Target
from xcfg.schema.runtime import RuntimeDescriptor

SIDE_TARGETS = {
    "rollout": {Target.ROLLOUT, Target.BOTH, Target.KERNEL},
    "training": {Target.TRAINING, Target.BOTH, Target.KERNEL},
}


def side_knobs(knobs: Mapping[str, Value], definitions: Mapping[str, KnobDefinition], side: str) -> dict[str, Value]:
    """Return path -> value as `side` sees it: knobs that act on it, with `path@side` in place of `path`."""
    result: dict[str, Value] = {}
    for key in sorted(knobs):
        path, _, only = key.partition("@")
        if only or definitions[path].targets not in SIDE_TARGETS[side]:
            continue
        result[path] = knobs.get(f"{path}@{side}", knobs[key])
    return result


def request_knobs(knobs: Mapping[str, Value], definitions: Mapping[str, KnobDefinition]) -> dict[str, Value]:
    """Return the values that travel with a score request instead of with the construction."""
    return {path: value for path, value in knobs.items() if definitions[path].lifecycle is Lifecycle.REQUEST}


def unsupported(descriptor: RuntimeDescriptor, side: str, knobs: Mapping[str, Value]) -> dict[str, str]:
    """Return path -> reason for every value that `descriptor` cannot honour on `side`."""
    declared = {item.path: item for item in descriptor.capabilities if item.side == side}
    open_ended = "*" in declared
    reasons: dict[str, str] = {}
    for path, value in knobs.items():
        capability = declared.get(path)
        if capability is None:
            if not open_ended:  # `*` declares every knob: the runtime is handed it and answers by readback
                reasons[path] = f"the runtime {descriptor.name!r} does not have this knob on the {side} side"
        elif capability.values and not _has(capability.values, value):
            shown = ", ".join(repr(item) for item in capability.values)
            kind = "has only the inherent value" if capability.inherent else "supports"
            note = f" ({capability.note})" if capability.note else ""
            reasons[path] = f"{value!r}: the runtime {descriptor.name!r} {kind} {shown}{note}"
    return reasons


def _has(values: tuple[Value, ...], value: Value) -> bool:
    return any(type(item) is type(value) and item == value for item in values)

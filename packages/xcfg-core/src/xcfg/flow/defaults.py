"""Values that no file sets: the schema's defaults, which a reader looks for in vain where one of them ends a case."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from xcfg.planning.normalise import same, two_sided
from xcfg.plugin.builtin.knobs import LOGP_BACKEND
from xcfg.schema._base import Value
from xcfg.schema.experiment import Experiment
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Applied
from xcfg.schema.plan import ExperimentCase
from xcfg.schema.runtime import KnobApplication, RuntimeDescriptor

UNFIT = (Applied.FALLBACK, Applied.UNSUPPORTED)


def is_default(path: str, side: str, case: ExperimentCase, experiment: Experiment, knob: KnobDefinition) -> bool:
    """Whether a case has the schema's default of a knob on a side because neither the file nor its change sets one."""
    keys = {path, f"{path}@{side}"}
    if path == LOGP_BACKEND and experiment.operators:
        return False  # the mapping of operators says what it is
    held = case.knobs.get(f"{path}@{side}", case.knobs.get(path))
    return not keys & {*experiment.baseline, *experiment.fixed, *case.delta} and same(held, knob.default)


def told(path: str, side: str, knob: KnobDefinition, instead: Value) -> str:
    """Return that the value is the default, and the line that asks for another. instead: None where none is known."""
    said = f"; the file does not set {path!r}: {knob.default!r} is the default of the experiment schema"
    if instead is None:
        return said
    key = f"{path}@{side}" if two_sided(knob) else path
    return f'{said}; add "baseline": {json.dumps({key: instead})}'


def with_defaults(
    reasons: Mapping[str, str],
    side: str,
    case: ExperimentCase,
    experiment: Experiment,
    descriptor: RuntimeDescriptor,
    definitions: Mapping[str, KnobDefinition],
) -> dict[str, str]:
    """Return path -> reason of what a runtime cannot honour, with a word on values that nobody asked for."""
    offered = {item.path: item.values[0] for item in descriptor.capabilities if item.side == side and item.values}
    return {
        path: why + told(path, side, definitions[path], offered.get(path))
        if is_default(path, side, case, experiment, definitions[path])
        else why
        for path, why in reasons.items()
    }


def of_applications(
    applications: Iterable[KnobApplication],
    case: ExperimentCase,
    experiment: Experiment,
    definitions: Mapping[str, KnobDefinition],
) -> str:
    """Return what is to be said of defaults that an engine did not run as they are; empty where there is none."""
    found = {
        (item.path, item.side): item.actual
        for item in applications
        if item.status in UNFIT
        and item.path in definitions
        and definitions[item.path].critical
        and is_default(item.path, item.side, case, experiment, definitions[item.path])
    }
    return "".join(
        told(path, side, definitions[path], value)
        for (path, side), value in sorted(found.items(), key=lambda item: item[0])
    )

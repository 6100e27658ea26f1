"""The axes of a row: what was asked for and what every rank read back, knob by knob and operator by operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xcfg.plugin.readback import operator_path
from xcfg.schema import codec
from xcfg.schema._base import Value
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Applied, Exercised
from xcfg.schema.plan import ExperimentCase
from xcfg.schema.runtime import KnobApplication

from xcfg_analysis.cube.rows import AxisCell

WORST = (Applied.ERROR, Applied.UNSUPPORTED, Applied.UNOBSERVABLE, Applied.FALLBACK, Applied.APPLIED)
WEAKEST = (Exercised.NO, Exercised.UNKNOWN, Exercised.YES)


def axis_cells(planned: ExperimentCase, applications: Sequence[KnobApplication]) -> dict[str, AxisCell]:
    """Return axis key -> cell of every knob and operator of a case; applications: of the two arms of the verdict."""
    cells = {}
    for key, value in planned.knobs.items():
        path, _, only = key.partition("@")
        mine = [
            item
            for item in applications
            if item.path == path and (item.side == only if only else f"{path}@{item.side}" not in planned.knobs)
        ]
        cells[key] = _cell(key, value, mine)
    for operation, choices in planned.operators.items():
        reported = operator_path(operation)
        for side, choice in choices.items():
            key = f"operators.{operation}.{side}"
            mine = [item for item in applications if item.path == reported and item.side == side]
            cells[key] = _cell(key, _spelled(choice.backend, choice.options), mine)
    known = {(key.partition("@")[0]) for key in cells} | {operator_path(name) for name in planned.operators}
    for path in sorted({item.path for item in applications} - known):
        cells[path] = _cell(path, None, [item for item in applications if item.path == path])
    return cells


def definition_of(knob: KnobDefinition) -> dict[str, Any]:
    """Return what an analysis has to know of a knob, as plain values."""
    align = knob.align
    return {
        "summary": knob.summary,
        "tier": knob.tier.value,
        "source_class": knob.source_class.value,
        "lifecycle": knob.lifecycle.value,
        "targets": knob.targets.value,
        "group": align.group if align else "",
        "scope": align.scope if align else None,
        "intrusion": align.intrusion if align else None,
        "maintenance": align.maintenance if align else None,
        "not_alignable": knob.not_alignable,
    }


def definitions(paths: Iterable[str], knobs: Mapping[str, KnobDefinition]) -> dict[str, dict[str, Any]]:
    """Return path -> definition of every path that an installed plugin declares."""
    return {path: definition_of(knobs[path]) for path in sorted(set(paths)) if path in knobs}


def _spelled(backend: str, options: Mapping[str, Any]) -> str:
    return f"{backend} {codec.canonical_json(options).decode()}" if options else backend


def _cell(key: str, requested: Value, mine: Sequence[KnobApplication]) -> AxisCell:
    actual = {(type(item.actual).__name__, item.actual) for item in mine}
    sides = {side: _weakest(item for item in mine if item.side == side) for side in {item.side for item in mine}}
    return AxisCell(
        path=key,
        requested=requested,
        actual=next(iter(actual))[1] if len(actual) == 1 else None,
        status=min((item.status for item in mine), key=WORST.index).value if mine else "",
        exercised=_weakest(mine),
        sides=dict(sorted(sides.items())),
    )


def _weakest(items: Iterable[KnobApplication]) -> str:
    said = {item.exercised for item in items}
    return min(said, key=WEAKEST.index).value if said else Exercised.UNKNOWN.value

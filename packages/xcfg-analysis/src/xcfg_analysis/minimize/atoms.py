"""The atoms of a search: what can be aligned, one by one, and what each costs by its package's own word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xcfg.schema.knobs import KnobDefinition


@dataclass(frozen=True)
class Atom:
    """One intervention. label: as it stands in a case's label. knobs: the axis keys that it changes alone.

    entries: positions in the experiment's `align`. scope, intrusion, maintenance: ranks of AlignSpec, smaller is less.
    """

    label: str
    knobs: tuple[str, ...]
    entries: tuple[int, ...] = ()
    scope: int = 1
    intrusion: int = 1
    maintenance: int = 1


def make_atom(
    label: str,
    knobs: tuple[str, ...],
    definitions: Mapping[str, KnobDefinition] | Mapping[str, dict[str, Any]],
    entries: tuple[int, ...] = (),
) -> Atom:
    """Return an atom with the largest scope, intrusion and maintenance that packages declare for its knobs, or 1."""
    found = {"scope": 1, "intrusion": 1, "maintenance": 1}
    for key in knobs:
        known = definitions.get(key.partition("@")[0])
        spec = known.align if isinstance(known, KnobDefinition) else known
        for name, before in found.items():
            value = spec.get(name) if isinstance(spec, dict) else getattr(spec, name, None)
            found[name] = before if value is None else max(before, int(value))
    return Atom(label, knobs, entries, **found)


def not_alignable(paths: Iterable[str], definitions: Mapping[str, KnobDefinition]) -> dict[str, str]:
    """Return path -> reason of the knobs among `paths` that no align entry can make equal."""
    found = {}
    for path in sorted({path.partition("@")[0] for path in paths}):
        known = definitions.get(path)
        if known is not None and known.align is None:
            found[path] = known.not_alignable or "its package declares no value map"
    return found

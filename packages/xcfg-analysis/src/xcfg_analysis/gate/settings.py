"""What every case of an experiment is made of: kept in a baseline, so that a case that changed can say where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from xcfg_analysis.cube.rows import Cube

PARTS = ("baseline", "operators", "runtime_options", "identity")
"""The members of an experiment file that enter every case."""
SHOWN = 3


def settings_of(cube: Cube) -> dict[str, Any]:
    """Return dotted name -> value of all that every case of the experiment shares; knobs by their own names."""
    found: dict[str, Any] = {}
    for part in PARTS:
        found.update(_leaves(cube.experiment.get(part) or {}, "" if part == "baseline" else f"{part}."))
    return found


def changes(now: Mapping[str, Any], kept: Mapping[str, Any]) -> str:
    """Return which settings differ and how, the first SHOWN of them; empty where none does or none was kept."""
    if not kept:
        return ""
    names = sorted(name for name in {*now, *kept} if now.get(name) != kept.get(name))
    told = [f"{name} {_said(now, name)} instead of {_said(kept, name)}" for name in names[:SHOWN]]
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*told, *more])


def _said(settings: Mapping[str, Any], name: str) -> str:
    return repr(settings[name]) if name in settings else "unset"


def _leaves(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", item

"""What every case of an experiment is made of: kept in a baseline, so that a case that changed can say where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from xcfg_analysis.cube.rows import Cube

KNOBS = ("baseline", "fixed")
PARTS = ("operators", "runtime_options", "identity", "scenario")
PLAIN = ("scenario_id", "strict_fallback")
"""Members of a stored experiment that enter every case id: tables of knobs, other tables, and single values."""
LEFT_OUT = ("identity.rollout.path",)
"""A place, which enters no id."""
SHOWN = 3
LONGEST = 80
"""Characters of a value: those of an inline identity are whole matrices."""


def settings_of(cube: Cube) -> dict[str, Any]:
    """Return dotted name -> value of all that every case of the experiment shares; knobs by their own names."""
    found: dict[str, Any] = {}
    for part in (*KNOBS, *PARTS):
        found.update(_leaves(cube.experiment.get(part) or {}, "" if part in KNOBS else f"{part}."))
    found |= {name: cube.experiment[name] for name in PLAIN if name in cube.experiment}
    return {name: value for name, value in found.items() if name not in LEFT_OUT}


def changes(now: Mapping[str, Any], kept: Mapping[str, Any]) -> str:
    """Return which settings differ and how, the first SHOWN of them; empty where none does or none was kept."""
    if not kept:
        return ""
    names = sorted(name for name in {*now, *kept} if now.get(name) != kept.get(name))
    told = [f"{name} {_said(now, name)} instead of {_said(kept, name)}" for name in names[:SHOWN]]
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*told, *more])


def _said(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return "unset"
    text = repr(settings[name])
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _leaves(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", item

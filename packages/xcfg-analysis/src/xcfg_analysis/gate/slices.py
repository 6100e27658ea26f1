"""In which JUnit suites a case is a test."""

from __future__ import annotations

from collections.abc import Sequence

from xcfg.schema.names import Role

CONTROLS = "controls"
OTHERS = "other cases"


def suites_of(role: str, slices: Sequence[str]) -> tuple[str, ...]:
    """Return the suites in which a case is a test: its slices, or one for controls and one for all others."""
    if role != Role.CASE.value:
        return (CONTROLS,)
    return tuple(slices) or (OTHERS,)

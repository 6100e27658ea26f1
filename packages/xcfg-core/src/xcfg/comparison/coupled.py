"""What else changed: actual settings of a case against the baseline's (contract, section 5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from xcfg.schema._base import Value
from xcfg.schema.names import Applied, Tier
from xcfg.schema.runtime import KnobApplication

STRICT = (Tier.IDENTICAL, Tier.SEMANTIC)
Actual = tuple[tuple[str, Value], ...]


def coupled_changes(
    baseline: Sequence[KnobApplication],
    case: Sequence[KnobApplication],
    declared: Collection[str],
    tiers: Mapping[str, Tier],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the undeclared changes, and those among them whose tier is IDENTICAL or SEMANTIC.

    Per path and side the sets of actual values over all ranks are compared, since a declared change of the
    world size changes how many ranks report. declared: paths of the case's delta, or `path@side` for one side
    only. tiers: path -> tier; a path without one is RECORDED. The first list means that the case supports no
    single-knob claim, a non-empty second that it is NOT_COMPARABLE. An actual value that only one of the two
    could observe is a change, for nobody can say that it is none.
    """
    before, after = _actuals(baseline), _actuals(case)
    changes = [
        {
            "path": path,
            "side": side,
            "baseline": _plain(before.get((path, side))),
            "case": _plain(after.get((path, side))),
            "tier": tiers.get(path, Tier.RECORDED).value,
        }
        for path, side in sorted(set(before) | set(after))
        if before.get((path, side)) != after.get((path, side)) and not _declared(path, side, declared)
    ]
    return changes, [change for change in changes if Tier(change["tier"]) in STRICT]


def _actuals(applications: Iterable[KnobApplication]) -> dict[tuple[str, str], Actual]:
    """Return (path, side) -> the distinct actual values over ranks, by type and value: True is not 1."""
    found: dict[tuple[str, str], set[tuple[str, Value]]] = {}
    for item in applications:
        unseen = item.status in (Applied.UNOBSERVABLE, Applied.ERROR)
        value = ("unobserved", None) if unseen else (type(item.actual).__name__, item.actual)
        found.setdefault((item.path, item.side), set()).add(value)
    return {key: tuple(sorted(values, key=repr)) for key, values in found.items()}


def _plain(actual: Actual | None) -> Any:
    """Return one value, a list where ranks disagree, or the word for what was not seen."""
    if actual is None:
        return "not reported"
    values = ["unobserved" if kind == "unobserved" else value for kind, value in actual]
    return values[0] if len(values) == 1 else values


def _declared(path: str, side: str, declared: Collection[str]) -> bool:
    return path in declared or f"{path}@{side}" in declared

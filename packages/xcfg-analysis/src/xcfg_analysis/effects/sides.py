"""On which side a case acts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xcfg_analysis.cube.rows import Row

SIDES = ("rollout", "training")


def side_of_key(key: str, definitions: Mapping[str, Mapping[str, Any]]) -> str:
    """Return rollout, training or both for an axis key; empty where nobody says."""
    path, _, only = key.partition("@")
    if only in SIDES:
        return only
    head, _, rest = path.partition(".")
    if head == "operators":
        side = rest.rpartition(".")[2]
        return side if side in SIDES else ""
    targets = str(definitions.get(path, {}).get("targets", ""))
    if targets in SIDES:
        return targets
    return "both" if targets else ""


def side_of_effect(row: Row, baseline: Row, definitions: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the side on which a case acts: as its knobs declare it, else by which side was scored anew."""
    declared = {side_of_key(key, definitions) for key in row.delta}
    if declared and "" not in declared:
        return next(iter(declared)) if len(declared) == 1 else "both"
    anew = {
        "training" if arm == "training" else "rollout"
        for arm, cell in row.arms.items()
        if arm != "recorded" and arm in baseline.arms and cell.key != baseline.arms[arm].key
    }
    return next(iter(anew)) if len(anew) == 1 else "both" if anew else ""

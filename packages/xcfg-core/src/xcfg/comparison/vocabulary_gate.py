"""Whether both sides summed over the same columns of the vocabulary, as their scores report it.

A runtime whose model pads the vocabulary reports `mechanism["vocabulary"]` as {"policy": "mask" | "include", "real":
int, "padded": int}. Under `include` the padded columns take part in every sum, and any other word than `mask` counts as
summing over columns that are not the real ones. A runtime that never pads may report nothing, which stands for no
padded column.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from xcfg.schema.names import Tier
from xcfg.schema.worker import ScoreReport

PATH = "mechanism.vocabulary"
DECLARED_BY = "vocab_padding_policy"
"""The last word of a knob that declares the policy, whichever package brings it."""
REAL = "real columns"


def vocabulary_differences(
    training: Sequence[ScoreReport], rollout: Sequence[ScoreReport], knobs: Collection[str]
) -> list[dict[str, Any]]:
    """Return the undeclared difference between the sides, or nothing; `knobs` are the paths that the case asks for.

    A knob declares what its own side sums over, and nothing of the other side.
    """
    sides = {"training": _summed(training), "rollout": _summed(rollout)}
    held = {side: {REAL} if _declared(side, knobs) else found for side, found in sides.items()}
    if sides["training"] == sides["rollout"] or held["training"] == held["rollout"]:
        return []
    shown = {side: ", ".join(sorted(found)) for side, found in sides.items()}
    return [{"path": PATH, **shown, "tier": Tier.SEMANTIC.value}]


def _declared(side: str, knobs: Collection[str]) -> bool:
    for key in knobs:
        path, _, only = key.partition("@")
        owner = only or path.partition(".")[0]
        if path.rpartition(".")[2] == DECLARED_BY and (owner == side or owner not in ("training", "rollout")):
            return True
    return False


def _summed(reports: Sequence[ScoreReport]) -> set[str]:
    """Return what the ranks of one side say that their sums include, in words."""
    found = {REAL}
    for report in reports:
        said = report.mechanism.get("vocabulary")
        if said is None:
            continue
        report_of = said if isinstance(said, dict) else {"policy": said}
        policy, sizes = report_of.get("policy"), f"{report_of.get('padded')} for {report_of.get('real')}"
        if policy == "include" and report_of.get("padded") != report_of.get("real"):
            found.add(f"padded columns, {sizes}")
        elif policy not in ("mask", "include"):
            found.add(f"padded columns, {sizes}, by the policy {policy!r}")
    return found

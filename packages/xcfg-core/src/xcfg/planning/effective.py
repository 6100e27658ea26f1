"""What one cell asks for, side by side, and how it is written down in a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xcfg.planning.normalise import same, split_key
from xcfg.schema._base import Value
from xcfg.schema.operators import OperatorChoice
from xcfg.schema.plan import ExperimentCase

Pair = tuple[Value, Value]
"""The values on (rollout, training); equal for a knob of one side."""


@dataclass(frozen=True)
class Effective:
    """knobs: path -> values on both sides. operators: operation -> side -> choice."""

    knobs: Mapping[str, Pair]
    operators: Mapping[str, Mapping[str, OperatorChoice]]

    def value(self, key: str) -> tuple[Value, ...] | None:
        """Return the values of `path`, `path@side` or `operators.<op>.<side>`; None where there is none.

        A path without a side has two values; an operator's value is its backend id.
        """
        path, side = split_key(key)
        if path.startswith("operators."):
            parts = path.split(".")
            choice = self.operators.get(parts[1], {}).get(parts[2]) if len(parts) == 3 else None
            return None if choice is None else (choice.backend,)
        pair = self.knobs.get(path)
        if pair is None or side is None:
            return pair
        return (pair[0] if side == "rollout" else pair[1],)


def write_knobs(effective: Effective, plain: Mapping[str, Value]) -> dict[str, Value]:
    """Return the knobs of a case: `path`, and `path@side` beside it only where one side differs.

    plain: the baseline's own value of each path, which decides which side counts as the one that differs; so
    the same two values are always written the same way within one experiment.
    """
    written: dict[str, Value] = {}
    for path in sorted(effective.knobs):
        rollout, training = effective.knobs[path]
        if same(rollout, training):
            written[path] = rollout
        elif same(rollout, plain[path]):
            written[path], written[f"{path}@training"] = rollout, training
        else:
            written[path], written[f"{path}@rollout"] = training, rollout
    return written


def read_case(case: ExperimentCase) -> Effective:
    """Return what a stored case asks for; the inverse of write_knobs."""
    knobs: dict[str, Pair] = {}
    for key, value in case.knobs.items():
        if "@" not in key:
            knobs[key] = (
                case.knobs.get(f"{key}@rollout", value),
                case.knobs.get(f"{key}@training", value),
            )
    return Effective(knobs=knobs, operators=case.operators)

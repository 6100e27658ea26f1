"""The gradient that a score looked at (`mechanism.backward` of its reports), as summaries and pages show it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xcfg.errors import ConfigError
from xcfg.schema._base import Record, Value
from xcfg.schema.codec import convert


class GradientSummary(Record):
    """How far an arm's gradient of the log probability with respect to the logits lies from float64's log_softmax.

    rows: looked at, of all ranks; broken_rows: of them, those where it is not finite, which the figures leave out.
    max_abs: largest difference. rel_l2: norm of the difference over norm of the gradient, of the worst rank. ran: what
    the backward states of itself, on the first of the ranks.
    """

    rows: int
    broken_rows: int
    max_abs: float
    rel_l2: float
    ran: dict[str, Value] = {}

    def options(self) -> str:
        """Return what ran as `name=value`, by name."""
        return ", ".join(f"{name}={value}" for name, value in sorted(self.ran.items()))


def gradient_of(mechanisms: Iterable[Any]) -> GradientSummary | None:
    """Return the gradient that the ranks of one score looked at, from the mechanism of each; None where none did.

    A mechanism is in words of the runtime: what is said there in another form is no such figure.
    """
    told = [item["backward"] for item in mechanisms if isinstance(item, dict) and "backward" in item]
    try:
        ranks = [convert(item, GradientSummary) for item in told]
    except ConfigError:
        return None
    if not ranks:
        return None
    return GradientSummary(
        rows=sum(item.rows for item in ranks),
        broken_rows=sum(item.broken_rows for item in ranks),
        max_abs=max(item.max_abs for item in ranks),
        rel_l2=max(item.rel_l2 for item in ranks),
        ran=ranks[0].ran,
    )

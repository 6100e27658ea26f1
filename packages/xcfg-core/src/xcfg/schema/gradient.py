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
    max_abs: largest difference, None where no row is left. rel_l2: norm of the difference over norm of float64's
    gradient, of the worst rank; None where no row is left or that norm is 0. ran: what the backward states of itself,
    on the first of the ranks.
    """

    rows: int
    broken_rows: int
    max_abs: float | None
    rel_l2: float | None
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
        max_abs=_worst(item.max_abs for item in ranks),
        rel_l2=_worst(item.rel_l2 for item in ranks),
        ran=ranks[0].ran,
    )


def _worst(figures: Iterable[float | None]) -> float | None:
    return max((figure for figure in figures if figure is not None), default=None)

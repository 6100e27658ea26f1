"""Number options: a range that NaN and the infinities lie outside of."""

from __future__ import annotations

import math
from typing import Any

import click

LARGEST = 1e9


class FiniteRange(click.FloatRange):
    """A float from `minimum` (excluded when `open_`) to 10^9: NaN compares with nothing, so it would pass any bound."""

    def __init__(self, minimum: float, *, open_: bool = False) -> None:
        """Keep the bounds."""
        super().__init__(min=minimum, max=LARGEST, min_open=open_)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail with the range."""
        if math.isnan(float(click.FLOAT.convert(value, param, ctx))):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return float(super().convert(value, param, ctx))

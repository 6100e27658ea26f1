"""The two shapes that a fault can have: it shifts d by a known amount, or it makes d larger on some tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from xcfg_analysis.stats import Line, straight
from xcfg_analysis.tokens import Bool, Float, Tokens

MANY = 30
"""Tokens that a group needs on either side of a comparison."""
LARGEST = 1e6


@dataclass(frozen=True)
class Contrast:
    """A group of tokens against all others.

    ratio: of their rms in units of the scale. rest: d brought to the level of the others, float64 [N], nats. shift:
    mean d of the group that was taken away first, 0 where it has no sign.
    """

    line: Line
    ratio: float
    shift: float
    rest: Float


def contrast(tokens: Tokens, group: Bool, *, least: int = MANY) -> Contrast | None:
    """Return how much larger |d| is within `group`, bool [N]; None where either side has fewer than `least` tokens."""
    inside = int(group.sum())
    if inside < least or len(group) - inside < least:
        return None
    line = straight(group.astype(np.float64), tokens.relative, tokens.cluster)
    if line is None or line.slope <= 0:
        return None
    shift, ratio, rest = level(tokens, group)
    return Contrast(line, ratio, shift, rest)


def level(tokens: Tokens, group: Bool) -> tuple[float, float, Float]:
    """Return (shift, ratio, rest): what brings the group's d to the level of the other tokens."""
    d = tokens.d[group]
    outside = _rms(tokens.d[~group] / tokens.scale[~group])
    mean, spread = float(d.mean()), float(d.std())
    shift = mean if spread == 0 or abs(mean) > 4 * spread / math.sqrt(len(d)) else 0.0
    inside = _rms((d - shift) / tokens.scale[group])
    ratio = min(LARGEST, max(1.0, inside / outside)) if outside > 0 else LARGEST
    rest = tokens.d.copy()
    rest[group] = (d - shift) / ratio
    before = _rms(d / tokens.scale[group])
    return shift, (min(LARGEST, before / outside) if outside > 0 else LARGEST), rest


def growth(tokens: Tokens, x: Float) -> tuple[Line, Float] | None:
    """Return the line of |d| against x, float64 [N], and d brought to the level at the least x; None if it falls."""
    line = straight(x, tokens.relative, tokens.cluster)
    if line is None or line.slope <= 0:
        return None
    start = line.intercept + line.slope * float(np.quantile(x, 0.02))
    factor = np.maximum(1.0, (line.intercept + line.slope * x) / max(start, 0.05))
    return line, tokens.d / factor


def _rms(values: Float) -> float:
    """Return the root mean square with values beyond 12 scales held at 12."""
    held = np.minimum(np.abs(values), 12.0) if len(values) else values
    return math.sqrt(float(np.mean(held * held))) if len(values) else 0.0

"""|d| against the position: a steady growth, or a jump at a block boundary (C2: vllm#48271, 256 tokens)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xcfg.plugin.signature import SignatureFit

from xcfg_analysis.forms import MANY, contrast, growth
from xcfg_analysis.stats import straight
from xcfg_analysis.tokens import Float, Int, Tokens

BLOCKS = tuple(1 << power for power in range(4, 21))
STEEP = 1.15
"""How much more of the variance the better of step and line explains before the other is dropped."""
CLOSE = 0.9
"""A block boundary explains at least this share of what the best boundary of all positions explains."""
RISES = 1.3
"""|d| at the far end over |d| at the near end."""


@dataclass(frozen=True)
class Steps:
    """Variance of the relative |d| that a step explains, by position: float64 [P], and that of a straight line."""

    explained: Float
    line: float


def steps(tokens: Tokens) -> Steps:
    """Return what a step at each position 0 ... max explains of the sum of squares, and what a line explains."""
    y = tokens.relative
    position = tokens.position - int(tokens.position.min())
    sums, counts = np.bincount(position, y), np.bincount(position).astype(np.float64)
    total, size = float(sums.sum()), float(counts.sum())
    below = np.concatenate(([0.0], np.cumsum(counts)[:-1]))
    low = np.concatenate(([0.0], np.cumsum(sums)[:-1]))
    above, high = size - below, total - low
    valid = (below >= MANY) & (above >= MANY)
    gap = np.where(valid, high / np.maximum(above, 1.0) - low / np.maximum(below, 1.0), 0.0)
    explained = np.where(gap > 0, gap * gap * below * above / size, 0.0)
    x = position.astype(np.float64)
    x -= x.mean()
    spread = float((x * x).sum())
    line = float((x * y).sum()) ** 2 / spread if spread else 0.0
    return Steps(explained, line)


class GrowthWithPosition:
    """E|d| = a + b position, b > 0."""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the line, unless a single step or the first tokens alone describe the growth better."""
        if len(tokens.d) < 2 * MANY or tokens.position.min() == tokens.position.max():
            return None
        curve = steps(tokens)
        if float(curve.explained.max()) > STEEP * curve.line:
            return None
        found = growth(tokens, tokens.position.astype(np.float64))
        if found is None:
            return None
        line, rest = found
        quarters = _quarters(tokens.relative, tokens.position)
        if len(quarters) < 3 or quarters[-1] < RISES * quarters[0] or quarters[-1] < max(quarters[:-1]):
            return None
        return SignatureFit(
            p_value=line.upper,
            rest=rest,
            concerned=tokens.position > np.median(tokens.position),
            says=f"|d| grows with the position, {quarters[-1] / quarters[0]:.2f} times from the first to the last "
            "quarter",
            where=f"positions {int(tokens.position.min())} to {int(tokens.position.max())}, the later the more",
            fix="Compare what accumulates along a sequence: position ids and RoPE scaling, dtype of the KV cache "
            "and of the RoPE "
            "table, state carried from prefix caching or chunked prefill.",
            next_command="xcfg knobs show rollout.enable_prefix_caching",
            refuted_by="Short and long prefixes of the same tokens differ equally.",
            parameters={"last_over_first_quarter": quarters[-1] / quarters[0]},
        )


class BlockBoundary:
    """E|d| = a before position B, b > a from B on; B a power of two from 16."""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the boundary at which a step explains as much as at any other position, and more than a line."""
        if len(tokens.d) < 2 * MANY or tokens.position.min() == tokens.position.max():
            return None
        curve = steps(tokens)
        first, last = int(tokens.position.min()), int(tokens.position.max())
        inside = [block for block in BLOCKS if first < block <= last]
        if not inside:
            return None
        block = max(inside, key=lambda value: curve.explained[value - first])
        step = float(curve.explained[block - first])
        if step < CLOSE * float(curve.explained.max()) or step < STEEP * curve.line:
            return None
        group = tokens.position >= block
        found = contrast(tokens, group)
        if found is None or found.ratio < RISES or _still_rising(tokens, group):
            return None
        return SignatureFit(
            p_value=min(1.0, found.line.upper * len(inside)),
            rest=found.rest,
            concerned=group,
            says=f"|d| is {found.ratio:.2f} times as large from position {block} on, and level on both sides of it",
            where=f"positions {block} to {last}; positions {first} to {block - 1} agree as usual",
            fix=f"Look for what switches at {block} tokens: page and block sizes, split-KV or tile boundaries, a "
            "kernel chosen by "
            "length, the size of a prefill chunk.",
            next_command="xcfg knobs show rollout.enable_prefix_caching",
            refuted_by="With a prompt that is 8 tokens longer the step stays with the same tokens instead of "
            f"position {block}.",
            parameters={"boundary": float(block), "ratio": found.ratio},
        )


def _quarters(y: Float, position: Int) -> list[float]:
    edges = np.unique(np.quantile(position, np.arange(1, 4) / 4))
    which = np.searchsorted(edges, position, side="left")
    counts = np.bincount(which)
    return [float(value) for value in np.bincount(which, y) / np.maximum(counts, 1)]


def _still_rising(tokens: Tokens, group: np.ndarray) -> bool:
    """Whether |d| keeps growing after the boundary, by more than it jumped at it: then it is no onset."""
    x = tokens.position[group].astype(np.float64)
    line = straight(x, tokens.relative[group], np.unique(tokens.cluster[group], return_inverse=True)[1])
    if line is None:
        return False
    jump = float(tokens.relative[group].mean() - tokens.relative[~group].mean())
    return line.upper < 1e-3 and line.slope * float(np.ptp(x)) > jump

"""Values of one side belong to the neighbouring position (field survey C1: maxtext#2103, same-position logits)."""

from __future__ import annotations

import math

import numpy as np
from xcfg.plugin.signature import SignatureFit

from xcfg_analysis.tokens import Float, Tokens

LEAST = 8
"""Neighbouring pairs that a sequence needs."""
RATIO = 0.25
"""A sequence is shifted when its mean squared difference falls below this share of the unshifted one."""


class Lag:
    """training[i] fits rollout[i + k], k = +1 or -1, in some or all sequences."""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the better of both directions."""
        found = [fit for step in (1, -1) if (fit := _shifted(tokens, step)) is not None]
        return max(found, key=lambda fit: int(fit.concerned.sum()), default=None)


def _shifted(tokens: Tokens, step: int) -> SignatureFit | None:
    size, count = len(tokens.d), len(tokens.starts)
    here = np.arange(size)
    there = np.clip(here + step, 0, size - 1)
    paired = (tokens.sequence[there] == tokens.sequence) & (tokens.position[there] == tokens.position + step)
    offset = tokens.d - (tokens.training - tokens.rollout)  # what was named before is taken from both
    moved: Float = tokens.training - tokens.rollout[there] + offset
    # Twice the unshifted error of independent values would be the shifted one; medians of squares resist outliers.
    before = np.bincount(tokens.sequence[paired], tokens.d[paired] ** 2, minlength=count)
    after = np.bincount(tokens.sequence[paired], moved[paired] ** 2, minlength=count)
    pairs = np.bincount(tokens.sequence[paired], minlength=count)
    shifted = (pairs >= LEAST) & (after < RATIO * before) & (before > 0)
    if not shifted.any():
        return None
    concerned = shifted[tokens.sequence]
    rest = np.where(concerned, np.where(paired, moved, np.nan), tokens.d)
    kept = float(after[shifted].sum() / before[shifted].sum())
    # Under the null the shifted error is the larger one: a ratio below RATIO in n pairs has an F tail.
    p_value = _tail(int(pairs[shifted].sum()), kept) * count
    word = "next" if step == 1 else "previous"
    return SignatureFit(
        p_value=min(1.0, 2 * p_value),
        rest=rest,
        concerned=concerned & paired,
        says=f"training[i] is close to rollout[i{step:+d}]: {kept:.3g} of the squared difference is left",
        where=f"{int(shifted.sum())} of {count} sequences; the rollout value of the {word} token belongs here",
        fix="Shift one side by one position: log probabilities of token i come from the logits at position i - 1.",
        refuted_by="The same comparison with one side shifted by one position differs as much as before.",
        parameters={"lag": float(step), "sequences": float(shifted.sum())},
    )


def _tail(pairs: int, ratio: float) -> float:
    """Return a bound on P(ratio of two sums of `pairs` squares < ratio), by Chernoff for equal variances."""
    if ratio <= 0:
        return 0.0
    return math.exp(0.5 * pairs * (math.log(4 * ratio) - 2 * math.log1p(ratio)))

"""One side holds a placeholder instead of a score: 0.0 or a sentinel (C1: SkyRL#758, open-instruct#1041)."""

from __future__ import annotations

import numpy as np
from xcfg.plugin.signature import SignatureFit

from xcfg_analysis.stats import binomial_tail
from xcfg_analysis.tokens import Bool, Float, Tokens

LEAST = 3
"""How often a value stands before it counts as a placeholder."""
FAR = 5.0
"""Scales of d, and FLOOR nats, beyond which a value cannot be the score of its token."""
FLOOR = 0.1
SHARE = 0.5
"""Of the tokens with this value so many are far off,"""
RARE = 1e-5
"""and so many would be far off by chance with this probability."""
TRIED = 64


class Fills:
    """value == v exactly on one side, while the other side has ordinary scores there."""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the fills of the side that has more of them."""
        far = np.abs(tokens.d) > np.maximum(FLOOR, FAR * tokens.scale)
        found = [fit for side in ("rollout", "training") if (fit := _filled(tokens, side, far)) is not None]
        return max(found, key=lambda fit: int(fit.concerned.sum()), default=None)


def _filled(tokens: Tokens, side: str, far: Bool) -> SignatureFit | None:
    values: Float = getattr(tokens, side)
    distinct, counts = np.unique(values[far], return_counts=True)
    often = counts >= LEAST
    distinct, counts = distinct[often][:TRIED], counts[often][:TRIED]
    chance = min(0.5, max(1, int(far.sum()) - int(counts.sum())) / len(far))
    filled: list[float] = []
    concerned = np.zeros(len(values), dtype=np.bool_)
    for value in distinct.tolist():
        here = values == value
        hits, trials = int(far[here].sum()), int(here.sum())
        if hits >= SHARE * trials and binomial_tail(hits, trials, chance) < RARE:
            filled.append(value)
            concerned |= here
    if not filled:
        return None
    number = int(concerned.sum())
    p_value = binomial_tail(int(far[concerned].sum()), number, chance) * TRIED
    shown = ", ".join(f"{value:g} ({int((values == value).sum())} times)" for value in filled[:3])
    return SignatureFit(
        p_value=min(1.0, p_value),
        rest=np.where(concerned, np.nan, tokens.d),
        concerned=concerned,
        says=f"{side} holds {shown} where the other side has a score",
        where=f"{number} tokens{_ending(tokens, concerned)}",
        fix=f"Mark tokens without a {side} score as not active, or record their score; a placeholder is no score.",
        refuted_by="The engine returns exactly this value for these tokens when it is asked for them alone.",
        parameters={"value": filled[0], "tokens": float(number)},
    )


def _ending(tokens: Tokens, concerned: Bool) -> str:
    last = np.append(tokens.starts[1:], len(tokens.d)) - 1
    if int(concerned[last].sum()) == int(concerned.sum()):
        return ", each the last of its sequence"
    return ""

"""One side holds a placeholder instead of a score: 0.0 or a sentinel (C1: SkyRL#758, open-instruct#1041)."""

from __future__ import annotations

import numpy as np
from xcfg.plugin.signature import SignatureFit

from xcfg_analysis.stats import binomial_tail
from xcfg_analysis.tokens import NORMAL, Bool, Float, Tokens

LEAST = 3
"""How often a value stands before it counts as a placeholder."""
FAR = 5.0
"""Scales of the d of all other tokens, and FLOOR nats, beyond which a value cannot be the score of its token."""
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
        found = [fit for side in ("rollout", "training") if (fit := _filled(tokens, side)) is not None]
        return max(found, key=lambda fit: int(fit.concerned.sum()), default=None)


def _filled(tokens: Tokens, side: str) -> SignatureFit | None:
    values: Float = getattr(tokens, side)
    size = np.abs(tokens.d)
    distinct, counts = np.unique(values, return_counts=True)
    often = np.argsort(-counts, kind="stable")[:TRIED]
    filled: list[float] = []
    concerned = np.zeros(len(values), dtype=np.bool_)
    rarest = 0.0
    for value in distinct[often[counts[often] >= LEAST]].tolist():
        here = values == value
        usual = size[~here]
        # The scale of the other tokens: a sentinel of -9999 is far from any of them, and so is 0.0 on most tokens.
        limit = max(FLOOR, FAR * NORMAL * float(np.median(usual))) if len(usual) else FLOOR
        far = size > limit
        hits, trials = int(far[here].sum()), int(here.sum())
        chance = min(0.5, max(1, int(far[~here].sum())) / len(values))
        p_value = binomial_tail(hits, trials, chance)
        if hits >= SHARE * trials and p_value < RARE:
            filled.append(value)
            concerned |= here
            rarest = max(rarest, p_value)
    if not filled:
        return None
    number = int(concerned.sum())
    shown = ", ".join(f"{value:g} ({int((values == value).sum())} times)" for value in filled[:3])
    return SignatureFit(
        p_value=min(1.0, rarest * TRIED),
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

"""Errors on improbable tokens only, beyond what honest rounding does there (C4: genlm-backend#66, 0.008 to 0.126)."""

from __future__ import annotations

import math

import numpy as np
from xcfg.plugin.signature import SignatureFit

from xcfg_analysis.forms import MANY
from xcfg_analysis.null import natural_profile
from xcfg_analysis.stats import straight
from xcfg_analysis.tokens import NORMAL, Tokens

LIMITS = (0.1, 0.03, 0.01, 0.001)
RATIO = 1.5
"""|d| of the tail over what the natural profile expects there, given the other tokens."""
SHARP = 1.25


class LowProbabilityTail:
    """d beyond rounding where p < P only: |d| / profile(log p) is level above P and larger below."""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the limit P with the clearest step against the natural profile of bfloat16 rounding."""
        logp = tokens.logp
        unit = np.abs(tokens.d) / natural_profile(logp)
        best: SignatureFit | None = None
        for limit in LIMITS:
            tail = logp < math.log(limit)
            if int(tail.sum()) < MANY or int((~tail).sum()) < MANY:
                continue
            usual = max(NORMAL * float(np.median(unit[~tail & (logp < math.log(0.9))])), 1e-12)
            y = np.minimum(unit / usual, 6.0)
            line = straight(tail.astype(np.float64), y, tokens.cluster)
            ratio = float(np.median(unit[tail])) * NORMAL / usual
            if line is None or line.slope <= 0 or ratio < RATIO:
                continue
            rest = np.where(tail, tokens.d / max(ratio, 1.0), tokens.d)
            p_value = min(1.0, line.upper * len(LIMITS))
            if best is None or float(np.square(rest).sum()) < float(np.square(best.rest).sum()) / SHARP:
                best = _found(tokens, limit, tail, rest, ratio, p_value)
        return best


def _found(
    tokens: Tokens, limit: float, tail: np.ndarray, rest: np.ndarray, ratio: float, p_value: float
) -> SignatureFit:
    return SignatureFit(
        p_value=p_value,
        rest=rest,
        concerned=tail,
        says=f"tokens with p < {limit:g} differ {ratio:.2f} times as much as rounding would let them, the others as "
        "usual",
        where=f"{int(tail.sum())} tokens with p < {limit:g}",
        fix="Compare the dtype in which logits and log_softmax are computed, and whether logits are clamped, capped "
        "or compressed "
        "(fp8 or int8 head) on one side.",
        next_command="xcfg knobs show logp.backend",
        refuted_by="Scored by a float32 head on both sides, the tail differs as much." + _unseen(tokens),
        parameters={"limit": limit, "ratio": ratio},
    )


def _unseen(tokens: Tokens) -> str:
    """Return what else looks like a tail, where the column that tells them apart was not scored."""
    if "entropy" in tokens.columns:
        return ""
    return (
        " A temperature on one side looks like it too: `xcfg run EXPERIMENT --columns entropy` tells them apart, "
        "of engines that have that column."
    )

"""bfloat16 logit minus bfloat16 logsumexp: differences of two coarse numbers (C1, C4: genlm-backend#66).

Both terms have the step of their own size, 1/16 for logits around 8 to 16, and keep it however small the difference is:
even a certain token is off by up to half a step. Rounding the finished log probability is finer there (see grid.py).
"""

from __future__ import annotations

import math

import numpy as np
from xcfg.plugin.signature import SignatureFit

from xcfg_analysis.tokens import Bool, Float, Tokens

STEPS = tuple(2.0**-power for power in range(1, 7))
SMALL = 1.0
"""Log probabilities above -1 show the step: a rounded log probability would have one of 1/256 or less there."""
LEAST = 12
DISTINCT = 8
"""Different values that a side needs: a constant, or a few, lie on every grid."""
SHARE = 0.95


class Bf16LogSoftmax:
    """value = bf16(logit) - bf16(LSE): all values of one side are multiples of one coarse step."""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the side whose confident values are multiples of at least 1/64."""
        for side in ("rollout", "training"):
            step = absolute_step(tokens, side)
            if step:
                return _found(tokens, side, step)
        return None


def absolute_step(tokens: Tokens, side: str) -> float:
    """Return the coarsest step of which nearly all confident values of a side are multiples, 0.0 if there is none."""
    values: Float = getattr(tokens, side)
    small = values[np.abs(values) < SMALL]
    if len(small) < LEAST or len(np.unique(small)) < 2 or len(np.unique(values)) < DISTINCT:
        return 0.0
    for step in STEPS:
        if float((small == np.round(small / step) * step).mean()) >= SHARE:
            return step
    return 0.0


def _steps(tokens: Tokens, step: float) -> Float:
    lse = tokens.columns.get("logsumexp")
    if lse is None:
        return np.full(len(tokens.d), step)
    known = np.where(np.isfinite(lse) & (lse != 0), np.abs(lse), 1.0)
    found: Float = np.ldexp(1.0, np.frexp(known)[1] - 1 - 7)
    return found


def _found(tokens: Tokens, side: str, step: float) -> SignatureFit:
    values: Float = getattr(tokens, side)
    concerned: Bool = np.ones(len(values), dtype=np.bool_)
    steps = _steps(tokens, step)
    energy = float(np.square(steps).sum()) / 12.0
    total = float(np.square(tokens.d).sum())
    share = min(1.0, energy / total) if total else 0.0
    small = int((np.abs(values) < SMALL).sum())
    source = "the bfloat16 step of the logsumexp" if "logsumexp" in tokens.columns else "the step"
    return SignatureFit(
        p_value=2.0**-small,
        rest=tokens.d * math.sqrt(1.0 - share),
        concerned=concerned,
        says=f"{side} values are multiples of {step:g} even where the token is nearly certain ({small} tokens above "
        f"{-SMALL:g}); "
        f"{source} costs {math.sqrt(energy / len(values)):.3g} nats (rms)",
        where=f"all tokens of the {side} side, certain ones as well",
        fix=f"Compute log_softmax from float32 logits on the {side} side; do not subtract a bfloat16 logsumexp from "
        "a bfloat16 "
        "logit.",
        refuted_by="The head and its log_softmax are seen to run in float32 on that side.",
        parameters={"step_nats": step, "rounding_rms_nats": math.sqrt(energy / len(values))},
    )

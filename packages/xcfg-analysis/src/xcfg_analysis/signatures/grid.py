"""The values of one side lie on the grid of a 16-bit float: scores were rounded on their way (field survey C4)."""

from __future__ import annotations

import math

import numpy as np
from xcfg.plugin.signature import SignatureFit

from xcfg_analysis.signatures.absolute import DISTINCT, absolute_step
from xcfg_analysis.tokens import Bool, Float, Tokens

LEAST = 8
"""Values that a sequence needs."""
BITS = {"bfloat16": 7, "float16": 10}
"""Stored bits of the mantissa; float32 has 23, so that a free value lies on the grid with chance 2^-(23 - bits)."""


class DyadicGrid:
    """value == round(value) in bfloat16 or float16, for whole sequences of one side or of both."""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the coarser grid that holds all values of some sequences."""
        for dtype in BITS:
            held = {side: _sequences(tokens, getattr(tokens, side), dtype) for side in ("training", "rollout")}
            sides = [side for side, group in held.items() if group.any()]
            sides = [side for side in sides if not absolute_step(tokens, side)]
            if sides:
                return _found(tokens, dtype, sides, held)
        return None


def on_grid(values: Float, dtype: str) -> Bool:
    """Return which float64 values a 16-bit float holds exactly, bool [N]."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
        if dtype == "bfloat16":
            exact: Bool = (single == values) & ((single.view(np.uint32) & 0xFFFF) == 0)
        else:
            exact = values.astype(np.float16).astype(np.float64) == values
    return exact


def _sequences(tokens: Tokens, values: Float, dtype: str) -> Bool:
    """Return the tokens, bool [N], of sequences all of whose values lie on the grid."""
    count = len(tokens.starts)
    off = np.bincount(tokens.sequence, ~on_grid(values, dtype), minlength=count)
    some = np.bincount(tokens.sequence, values != 0, minlength=count)
    held: Bool = ((off == 0) & (some >= LEAST))[tokens.sequence]
    return held if len(np.unique(values[held])) >= DISTINCT else np.zeros_like(held)


def _found(tokens: Tokens, dtype: str, sides: list[str], held: dict[str, Bool]) -> SignatureFit:
    concerned = np.zeros(len(tokens.d), dtype=np.bool_)
    energy = np.zeros(len(tokens.d))
    for side in sides:
        values = getattr(tokens, side)
        step = np.ldexp(1.0, np.frexp(np.where(values == 0, 1.0, values))[1] - 1 - BITS[dtype])
        energy += np.where(held[side], step * step / 12.0, 0.0)
        concerned |= held[side]
    total = float(np.square(tokens.d[concerned]).sum())
    share = min(1.0, float(energy.sum()) / total) if total else 0.0
    number = int(concerned.sum())
    whole = "all tokens" if number == len(concerned) else f"{number} tokens in whole sequences"
    named = " and ".join(sides)
    return SignatureFit(
        p_value=2.0 ** -(LEAST * (23 - BITS[dtype]) // 2),
        rest=np.where(concerned, tokens.d * math.sqrt(1.0 - share), tokens.d),
        concerned=concerned,
        says=f"every {named} value is a {dtype} number; rounding to it costs "
        f"{math.sqrt(float(energy.sum()) / number):.3g} nats "
        "(rms, step^2 / 12)",
        where=f"{whole} of the {named} side",
        fix=f"Keep log probabilities in float32 on the {named} side: cast the logits up before log_softmax, and "
        "store scores "
        "in float32.",
        refuted_by=f"The engine's own float32 scores are {dtype} numbers too.",
        parameters={"mantissa_bits": float(BITS[dtype]), "rounding_rms_nats": math.sqrt(float(energy.sum()) / number)},
    )

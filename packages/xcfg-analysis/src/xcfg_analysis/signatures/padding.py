"""Padded vocabulary entries take part in one side's softmax (C3: RL-Kernel#329, 152064 against 151936 entries)."""

from __future__ import annotations

import numpy as np
from xcfg.plugin.signature import SignatureFit

from xcfg_analysis.stats import through_origin
from xcfg_analysis.tokens import Float, Tokens

GRID = np.linspace(-8.0, 8.0, 65)
"""log of the padded sum over exp(median logsumexp)."""
NEAR = 0.25


class PaddedVocabulary:
    """d = +-log(1 + A exp(-LSE)): A = number of padded entries times exp of their logit."""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the best A; the fitted factor of the form must be near 1."""
        lse = tokens.columns["logsumexp"]
        known = np.isfinite(lse)
        lse = np.where(known, lse, np.inf)
        if not known.any():
            return None
        middle = float(np.median(lse[known]))
        sign = 1.0 if float(tokens.d.sum()) > 0 else -1.0
        errors = [float(np.square(sign * tokens.d - _form(lse, middle + shift)).sum()) for shift in GRID]
        best = middle + float(GRID[int(np.argmin(errors))])
        for step in (0.125, 0.0625, 0.03125, 0.015625, 0.0078125):
            near = [best - step, best, best + step]
            best = near[int(np.argmin([float(np.square(sign * tokens.d - _form(lse, log)).sum()) for log in near]))]
        x = sign * _form(lse, best)
        line = through_origin(x, tokens.d, tokens.cluster)
        if line is None or abs(line.slope - 1.0) > NEAR or float(x.std()) < 0.1 * float(np.abs(x).mean()):
            return None
        side = "rollout" if sign > 0 else "training"
        return SignatureFit(
            p_value=min(1.0, line.two_sided * 8),
            rest=tokens.d - x,
            concerned=np.abs(x) > 0.5 * float(np.abs(x).mean()),
            says=f"d = {sign:+.0f} log(1 + A exp(-LSE)) with log A = {best:.2f}: the {side} side adds entries that "
            "hold "
            f"{float(np.mean(1 - np.exp(-np.abs(x)))):.2%} of the probability on average",
            where="all tokens, the more the smaller their logsumexp; the sign never changes",
            fix=f"Slice the {side} logits to the tokenizer's vocabulary before the softmax, or mask the padded "
            "entries.",
            refuted_by="The weight matrix of the head has as many rows as the tokenizer has entries on both sides.",
            parameters={"log_padded_sum": best},
        )


def _form(lse: Float, log_sum: float) -> Float:
    form: Float = np.logaddexp(0.0, log_sum - lse)
    return form

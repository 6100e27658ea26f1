"""One side scales its logits by a temperature and the other does not (C1: verl#4162, trl#4772, tinker-cloud#26).

log p under logits beta z has the derivative z - E[z] = log p + H with respect to beta at beta = 1, H the entropy in
nats. So d = s (log p + H) to first order, and s = beta_training / beta_rollout - 1.
"""

from __future__ import annotations

import numpy as np
from xcfg.plugin.signature import InsufficientData, SignatureFit

from xcfg_analysis.stats import through_origin
from xcfg_analysis.tokens import Float, Tokens

SMALLEST = 1e-4
UNLIKE = 0.5
"""The factors of log p and of H differ by at most this share."""
WITHOUT = "it needs the column entropy (training side, nats)"


class Temperature:
    """d = s (log p + H)."""

    def fit(self, tokens: Tokens) -> SignatureFit | InsufficientData | None:
        """Return the slope of d against log p + H."""
        if "entropy" not in tokens.columns:
            return InsufficientData(WITHOUT)
        entropy = tokens.columns["entropy"]
        x = tokens.training + entropy
        known = np.isfinite(x)
        x = np.where(known, x, 0.0)
        line = through_origin(x, tokens.d, tokens.cluster)
        if line is None or abs(line.slope) < SMALLEST or not _balanced(tokens.training, entropy, tokens.d):
            return None
        prediction = _second_order(x, entropy, tokens.d, line.slope)
        slope, margin = line.slope, line.margin
        ratio = 1.0 / (1.0 + slope) if slope > -0.9 else float("inf")
        return SignatureFit(
            p_value=line.two_sided,
            rest=tokens.d - prediction,
            concerned=np.abs(x) > np.median(np.abs(x)),
            says=f"d = {slope:+.4f} (log p + H), 95 % interval +-{margin:.4f}: "
            f"training logits are {1 + slope:.4f} times those of the rollout",
            where="all tokens, the more the less expected the token",
            fix=_fix(slope),
            refuted_by="Both sides scored at temperature 1 (raw_logprobs on the rollout, no division in the trainer) "
            "keep the same slope.",
            parameters={"slope": slope, "temperature_training_over_rollout": ratio},
        )


def _balanced(logp: Float, entropy: Float, d: Float) -> bool:
    """Whether log p and H, fitted apart, have about the same factor: values that merely mismatch follow log p alone."""
    basis = np.nan_to_num(np.stack([logp, entropy], axis=1))
    first, second = np.linalg.lstsq(basis, d, rcond=None)[0].tolist()
    return bool(first * second > 0 and abs(first - second) <= UNLIKE * max(abs(first), abs(second)))


def _second_order(x: Float, entropy: Float, d: Float, slope: float) -> Float:
    """Return slope x plus the best quadratic in x and H, which stands for the unknown variance of the logits."""
    if abs(slope) < 0.02:
        return slope * x
    held = np.clip(x, -12.0, 12.0)
    basis = np.stack([x, held * held, held * entropy, entropy * entropy], axis=1)
    basis[~np.isfinite(basis)] = 0.0
    weights = np.linalg.lstsq(basis, d, rcond=None)[0]
    fitted: Float = basis @ weights
    return fitted


def _fix(slope: float) -> str:
    hot, cold = ("rollout", "training") if slope > 0 else ("training", "rollout")
    return (
        f"Score both sides at one temperature: either the {hot} divides its logits by a temperature above 1, or the "
        f"{cold} by one below 1. Check logprobs_mode (raw against processed) and the trainer's division."
    )

"""One side renormalises over what top-k or top-p keeps (C1: trl#6789): its log p gains -log S, S the kept mass."""

from __future__ import annotations

import numpy as np
from xcfg.plugin.signature import InsufficientData, SignatureFit

from xcfg_analysis.stats import straight, through_origin
from xcfg_analysis.tokens import Tokens

NEAR = 0.25
"""The fitted factor of log S, with and without a constant beside it, lies this close to 1 or -1."""
CLEAR = 1e-6
LEAN = 0.3
"""Without the column: d leans to one side when its mean is clear of 0 and at least this share of its rms."""


class TruncatedSoftmax:
    """d = +log S when the rollout is truncated, -log S when the training side is."""

    def fit(self, tokens: Tokens) -> SignatureFit | InsufficientData | None:
        """Return the fit with factor 1; without the column, whether the signs at least point that way."""
        if "kept_mass" not in tokens.columns:
            return InsufficientData(_signs(tokens))
        mass = tokens.columns["kept_mass"]
        known = np.isfinite(mass) & (mass > 0) & (mass <= 1.0 + 1e-6)
        x = np.log(np.where(known, np.minimum(mass, 1.0), 1.0))
        line = through_origin(x, tokens.d, tokens.cluster)
        free = straight(x, tokens.d, tokens.cluster)
        if line is None or free is None or max(abs(abs(it.slope) - 1.0) for it in (line, free)) > NEAR:
            return None
        sign = 1.0 if line.slope > 0 else -1.0
        side = "rollout" if sign > 0 else "training"
        return SignatureFit(
            p_value=line.two_sided,
            rest=tokens.d - sign * x,
            concerned=x < -1e-3,
            says=f"d = {line.slope:+.3f} log S with S the kept mass: the {side} side is renormalised over it "
            f"(mean S {float(np.exp(x).mean()):.4f})",
            where=f"{int((x < -1e-3).sum())} tokens with S < 0.999; the others agree",
            fix=f"Record raw log probabilities on the {side} side (before top-k, top-p, min-p), or renormalise the "
            "other "
            "side over the same set.",
            refuted_by="With top_k = 0 and top_p = 1 on both sides the difference stays.",
            parameters={"factor": line.slope, "mean_kept_mass": float(np.exp(x).mean())},
        )


def _signs(tokens: Tokens) -> str:
    """Return why nothing can be said; where d leans to one side, which column would settle it."""
    lean = through_origin(np.ones(len(tokens.d)), tokens.d, tokens.cluster)
    rms = float(np.sqrt(np.mean(np.square(tokens.d))))
    if lean is None or lean.two_sided > CLEAR or abs(lean.slope) < LEAN * rms:
        return "it needs the column kept_mass (probability kept by top-k or top-p)"
    side = "training" if lean.slope > 0 else "rollout"
    return (
        f"d leans to one side (mean {lean.slope:+.4f} nats), as a {side} side renormalised over top-k or top-p "
        "would give; "
        "export the column kept_mass to tell"
    )

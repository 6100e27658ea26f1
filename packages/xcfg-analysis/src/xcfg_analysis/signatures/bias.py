"""The same amount on every token (C3: verl-omni#279): confident tokens move as much as the others."""

from __future__ import annotations

import math

import numpy as np
from xcfg.plugin.signature import SignatureFit

from xcfg_analysis.stats import straight, through_origin
from xcfg_analysis.tokens import MIDDLE_SHARE, Tokens


class ConstantBias:
    """d = c."""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the common shift; it must stand at confident and at uncertain tokens alike."""
        size = len(tokens.d)
        line = through_origin(np.ones(size), tokens.d, tokens.cluster)
        if line is None or size < 60:
            return None
        confident = tokens.logp > np.median(tokens.logp)
        low, high = (float(np.median(tokens.d[group])) for group in (~confident, confident))
        shift = float(np.median(tokens.d))
        if (
            shift == 0
            or min(low / shift, high / shift) < MIDDLE_SHARE
            or max(low / shift, high / shift) > 1 / MIDDLE_SHARE
        ):
            return None
        slope = straight(tokens.logp, tokens.d, tokens.cluster)
        spread = float(tokens.logp.std())
        if slope is not None and abs(slope.slope) * spread > 0.5 * abs(line.slope) and slope.two_sided < 0.01:
            return None
        return SignatureFit(
            p_value=line.two_sided,
            rest=tokens.d - line.slope,
            concerned=np.ones(size, dtype=np.bool_),
            says=f"every token differs by {line.slope:+.5f} nats (95 % interval +-{line.margin:.5f}); the "
            "perplexity ratio is "
            f"{math.exp(-line.slope):.4f}",
            where=f"all {size} tokens; median {high:+.5f} on confident and {low:+.5f} on uncertain ones",
            fix="Look for a term that is added once per token on one side: a penalty, a logit bias, a stale step "
            "count, a "
            "normaliser from another shard.",
            refuted_by="The shift differs between confident and uncertain tokens on more data.",
            parameters={"bias_nats": line.slope},
        )

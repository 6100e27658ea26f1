"""The numbers that people chart, under the names of their stack; the reducer is the last part of each name.

d = training - rollout in nats, r = exp(d), over active tokens. Means over tokens and over sequences differ, and so do
the two directions of a KL: the names of core's aliases carry both (xcfg.schema.result.EdgeResult.aliases).
"""

from __future__ import annotations

import numpy as np
from xcfg.dumps import DumpTable
from xcfg.schema.result import EdgeResult

RANGES = {"[0.8,1.25]": (0.8, 1.25), "[0.9,1.1]": (0.9, 1.1)}
MULTIPLE = 2.0
MAIN = (
    "slime/train_rollout_logprob_abs_diff.token_mean",
    "nemo-rl/token_mult_prob_error.token_mean",
    "verl/rollout_corr/k3_kl.token_mean",
    "verl/rollout_corr/chi2_token.token_mean",
    "verl/rollout_corr/ppl_ratio.sequence_mean",
    "verl/training/rollout_actor_probs_pearson_corr.token",
    "rl-kernel/max_abs_dlogp.token_max",
    "xcfg/pearson_logp.token",
    "xcfg/effective_sample_size.token_share",
    "xcfg/ratio_outside_[0.8,1.25].token_share",
    "xcfg/ratio_outside_[0.9,1.1].token_share",
    "xcfg/ratio_above_2.token_share",
)
"""What a terminal shows; the document holds all of them."""


def charted(edge: EdgeResult, table: DumpTable) -> dict[str, float | None]:
    """Return name -> value of `edge`, None where a value overflows or is undefined."""
    own: dict[str, float | None] = {
        "xcfg/pearson_logp.token": edge.pearson,
        "xcfg/effective_sample_size.token_share": edge.ess,
        "xcfg/ppl_ratio.token_mean": edge.ppl_ratio,
        "xcfg/bias.token_mean": edge.bias,
        "xcfg/rms.token": edge.rms,
    }
    if edge.active_tokens:
        d = table.training[table.active].astype(np.float64) - table.rollout[table.active]
        for label, (low, high) in RANGES.items():
            inside = (d >= np.log(low)) & (d <= np.log(high))
            own[f"xcfg/ratio_outside_{label}.token_share"] = float(1.0 - inside.mean())
        own["xcfg/ratio_above_2.token_share"] = float((d > np.log(MULTIPLE)).mean())
    return {**edge.aliases, **own}

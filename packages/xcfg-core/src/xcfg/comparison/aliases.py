"""The same figures under the names that other stacks chart, with the reducer in the name.

d = training - rollout, per active token. `.token_mean` averages over tokens, `.sequence_mean` over sequences
of per-sequence means (or of per-sequence perplexities). Nothing is clamped or truncated, where some stacks
clamp the log ratio at +-20. Definitions as published in each stack: verl `rollout_corr/*` and
`training/rollout_probs_diff_*` (the latter in probability space), slime and miles
`train_rollout_logprob_abs_diff`, NeMo-RL, TRL, SkyRL, OpenRLHF, prime-rl, AReaL, RL-Kernel.
"""

from __future__ import annotations

import math

import numpy as np

from xcfg.comparison.figures import Figures, guarded
from xcfg.comparison.sums import Grouping

Aliases = dict[str, float | None]


def stack_aliases(figures: Figures) -> Aliases:
    """Return alias -> value for an edge of training against a rollout arm; None where a value overflows."""
    shared = figures.shared()
    return {**_token_space(figures, shared), **_probability_space(figures), **_sequences(figures)}


def _token_space(figures: Figures, shared: Aliases) -> Aliases:
    mean_abs, k3, kl = shared["mean_abs"], shared["approx_kl0"], shared["mismatch_kl"]
    spread = figures.deviation("abs", "squares", figures.sums.scale)
    return {
        "areal/rollout_train_k3_kl.token_mean": k3,
        "nemo-rl/gen_kl_error.token_mean": k3,
        "nemo-rl/token_mult_prob_error.token_mean": figures.mean("exp_abs"),
        "openrlhf/vllm_kl.token_mean": kl,
        "prime-rl/mismatch_kl/all/mean.token_mean": k3,
        "prime-rl/mismatch_kl/all/max.token_max": _largest_k3(figures),
        "rl-kernel/max_abs_dlogp.token_max": figures.top,
        "rl-kernel/mean_abs_dlogp.token_mean": mean_abs,
        "skyrl/policy/rollout_train_logprobs_abs_diff_max.token_max": figures.top,
        "skyrl/policy/rollout_train_logprobs_abs_diff_mean.token_mean": mean_abs,
        "skyrl/policy/rollout_train_logprobs_abs_diff_min.token_min": figures.least,
        "skyrl/policy/rollout_train_logprobs_abs_diff_std.token_std": spread,
        "slime/train_rollout_logprob_abs_diff.token_mean": mean_abs,
        "trl/sampling/importance_sampling_ratio/max.token_max": guarded(lambda: math.exp(figures.high)),
        "trl/sampling/importance_sampling_ratio/mean.token_mean": shared["ratio0"],
        "trl/sampling/importance_sampling_ratio/min.token_min": guarded(lambda: math.exp(figures.low)),
        "trl/sampling/sampling_logp_difference/max.token_max": figures.top,
        "trl/sampling/sampling_logp_difference/mean.token_mean": mean_abs,
        "verl/rollout_corr/chi2_token.token_mean": shared["chi2"],
        "verl/rollout_corr/k3_kl.token_mean": k3,
        "verl/rollout_corr/kl.token_mean": kl,
    }


def _largest_k3(figures: Figures) -> float | None:
    """Return max(exp d - 1 - d): the function is convex, so it is largest at an end of the range of d."""
    return guarded(lambda: max(math.expm1(end) - end for end in (figures.low, figures.high)))


def _probability_space(figures: Figures) -> Aliases:
    largest = figures.sums.largest_gap
    return {
        "verl/training/rollout_actor_probs_pearson_corr.token": figures.correlation("p", "q", "pp", "qq", "pq"),
        "verl/training/rollout_probs_diff_max.token_max": guarded(lambda: largest),
        "verl/training/rollout_probs_diff_mean.token_mean": figures.mean("gap"),
        "verl/training/rollout_probs_diff_std.token_std": figures.deviation("gap", "gap2"),
    }


def _sequences(figures: Figures) -> Aliases:
    """Return means over sequences; l = -mean log p per sequence, perplexity exp(l)."""
    grouping, origin = figures.sums.sequence, figures.sums.origin
    if not (grouping.sums["u"].finite and grouping.sums["v"].finite):
        return {}
    training = [-(origin[0] + value) for value in _means(grouping, "u")]
    rollout = [-(origin[1] + value) for value in _means(grouping, "v")]
    gaps = [0.0 - value for value in _means(grouping, "d")]
    prefix = "verl/rollout_corr/"
    return {
        "slime/train_rollout_logprob_abs_diff.sequence_mean": _mean(_means(grouping, "abs")),
        f"{prefix}log_ppl_abs_diff.sequence_mean": _mean([abs(gap) for gap in gaps]),
        f"{prefix}log_ppl_diff.sequence_mean": _mean(gaps),
        f"{prefix}log_ppl_diff_max.sequence_max": max(gaps),
        f"{prefix}log_ppl_diff_min.sequence_min": min(gaps),
        f"{prefix}ppl_ratio.sequence_mean": _mean_exp(gaps),
        f"{prefix}rollout_log_ppl.sequence_mean": _mean(rollout),
        f"{prefix}rollout_ppl.sequence_mean": _mean_exp(rollout),
        f"{prefix}training_log_ppl.sequence_mean": _mean(training),
        f"{prefix}training_ppl.sequence_mean": _mean_exp(training),
    }


def _means(grouping: Grouping, name: str) -> list[float]:
    means = grouping.sums[name].means(grouping.tokens)
    return [means[at] for at in np.flatnonzero(grouping.tokens)]


def _mean(values: list[float]) -> float | None:
    return guarded(lambda: math.fsum(values) / len(values))


def _mean_exp(values: list[float]) -> float | None:
    return guarded(lambda: math.fsum(math.exp(value) for value in values) / len(values))

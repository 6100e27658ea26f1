"""Columns of a dump that must agree with each other; a contradiction is said and changes no verdict."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xcfg.dumps.columns import Batch

ROUNDINGS = 8
"""Roundings to float32 that may lie between logits and a log probability: both columns, the sum, the difference."""
UNIT = 2.0**-24


def contradiction(columns: Batch) -> str:
    """Return how `selected_logit - logsumexp` differs from the log probability, or an empty string.

    Both columns are the trainer's, so logp_train has to be their difference on every active token, up to
    ROUNDINGS float32 roundings of the two. Tokens where a column is absent (NaN) say nothing.
    """
    if not {"selected_logit", "logsumexp", "logp_train"} <= columns.keys():
        return ""
    rows = columns["active"] & np.isfinite(columns["selected_logit"]) & np.isfinite(columns["logsumexp"])
    logit, total = (columns[name][rows].astype(np.float64) for name in ("selected_logit", "logsumexp"))
    allowed = ROUNDINGS * UNIT * (np.abs(logit) + np.abs(total))
    gap = np.abs(columns["logp_train"][rows] - (logit - total))
    bad = int((gap > allowed).sum())
    if not bad:
        return ""
    other = columns.get("logp_rollout")
    fits = other is not None and _fits(other[rows], logit - total, allowed)
    return (
        f"selected_logit - logsumexp is not logp_train on {bad} of {len(gap)} active tokens, by up to {gap.max():.3g}"
        + ("; it is logp_rollout" if fits else "")
    )


def _fits(values: NDArray[np.floating], wanted: NDArray[np.float64], allowed: NDArray[np.float64]) -> bool:
    return bool((np.abs(values - wanted) <= allowed).all())

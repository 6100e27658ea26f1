"""The float64 formula of a selected log probability in numpy, and how far an honest float32 backend may be from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
ERROR_TERMS = 4
"""Roundings per quantity in the bound below: subtraction, exponential, sum, logarithm."""


def selected_logprob(logits: torch.Tensor, selected: torch.Tensor) -> tuple[Array, Array]:
    """Return (log probability, log-sum-exp), float64 [N], from extended precision in numpy.

    (x[s] - m) - log(sum of exp(x - m)) with the maximum m, so that logits of any size keep their digits. Rows without a
    distribution (NaN, +inf, only -inf) are NaN.
    """
    wide = logits.detach().cpu().double().numpy().astype(np.longdouble)
    rows = np.arange(len(wide))
    with np.errstate(invalid="ignore", divide="ignore"):
        top = wide.max(axis=-1)
        log_sum = np.log(np.exp(wide - top[:, None]).sum(axis=-1))
        total = top + log_sum
        found = (wide[rows, selected.detach().cpu().numpy()] - top) - log_sum
    broken = ~np.isfinite(top)
    found[broken], total[broken] = np.nan, np.nan
    return found.astype(np.float64), total.astype(np.float64)


def linear_logits(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[NDArray[np.longdouble], Array]:
    """Return hidden @ weight^T [N, V] in extended precision, and the largest sum of |products| of a row, float64 [N].

    The second times K times a relative precision bounds the error of a logit that is summed in any order.
    """
    wide = [item.detach().cpu().double().numpy().astype(np.longdouble) for item in (hidden, weight)]
    with np.errstate(invalid="ignore"):
        logits = wide[0] @ wide[1].T
        sizes = (np.abs(wide[0]) @ np.abs(wide[1]).T).max(axis=1, initial=0.0)
    return logits, sizes.astype(np.float64)


def bound(logits: torch.Tensor, value: Array, lse: Array, epsilon: float) -> Array:
    """Return the largest error, float64 [N], of an evaluation with relative precision `epsilon`.

    First-order rounding analysis: each of ERROR_TERMS steps costs epsilon times the quantities that pass through
    it, which are the selected logit, the log-sum-exp, and a blockwise sum of V terms (log2 V roundings).
    """
    finite = np.nan_to_num(np.abs(value), nan=0.0, posinf=0.0, neginf=0.0)
    scale = 1.0 + finite + 2.0 * np.nan_to_num(np.abs(lse), nan=0.0) + np.log2(max(2, logits.shape[1]))
    result: Array = ERROR_TERMS * epsilon * scale
    return result


def describe_misses(found: Array, expected: Array, allowed: Array, *, limit: int = 5) -> str:
    """Return the first rows whose error exceeds `allowed`, or an empty string; NaN beside a number is a miss."""
    with np.errstate(invalid="ignore"):
        close = np.abs(found - expected) <= allowed
    same = close | (found == expected) | (np.isnan(found) & np.isnan(expected))
    lines = [
        f"row {row}: got {found[row]!r}, float64 formula {expected[row]!r}, allowed error {allowed[row]:.3g}"
        for row in np.flatnonzero(~same)[:limit]
    ]
    more = int((~same).sum()) - len(lines)
    return "\n".join(lines + ([f"and {more} more rows"] if more > 0 else []))

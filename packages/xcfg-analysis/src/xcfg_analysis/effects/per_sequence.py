"""Per-sequence sums of an edge: what every interval is made of, since tokens of one sequence are not independent."""

from __future__ import annotations

import numpy as np

from xcfg_analysis.cube.load import Bool, Float, Int

QUANTITIES = ("mean_sq", "mean_abs", "k3")
"""mean d^2 in nats^2, mean |d| in nats, mean(exp d - 1 - d), an estimate of a KL divergence in nats."""


def edge_sums(d: Float, mask: Bool, sequence: Int, sequences: int) -> Float:
    """Return float64 [S, 4]: tokens, sum of d^2, of |d| and of exp(d) - 1 - d, over the masked tokens of each sequence.

    d, mask, sequence: [T]. A difference beyond the range of exp makes the last sum infinite.
    """
    held, where = d[mask], sequence[mask]
    with np.errstate(over="ignore"):
        k3 = np.expm1(held) - held
    columns = (np.ones(len(held)), np.square(held), np.abs(held), k3)
    return np.stack([np.bincount(where, values, minlength=sequences) for values in columns], axis=1)


def means(sums: Float) -> dict[str, float]:
    """Return quantity -> mean over tokens of [S, 4] sums; NaN without tokens."""
    total = sums.sum(axis=0)
    if total[0] == 0:
        return dict.fromkeys(QUANTITIES, float("nan"))
    return {name: float(total[at + 1] / total[0]) for at, name in enumerate(QUANTITIES)}


def is_same_tokens(first: Float, second: Float) -> bool:
    """Whether two sums are over the same number of tokens in every sequence, so that they can be paired."""
    return bool(np.array_equal(first[:, 0], second[:, 0]))

"""|d| by weight version and by training rank (C2, C3: stale weights after an update, one rank with another kernel)."""

from __future__ import annotations

import numpy as np
from xcfg.plugin.signature import SignatureFit

from xcfg_analysis.forms import MANY, contrast, growth
from xcfg_analysis.tokens import Tokens

RISES = 1.25
MOST = 10
"""Subsets of up to this many ranks enter the correction of the p value."""


class GrowthWithVersion:
    """E|d| = a + b version, b > 0, or the other way round: the older the weights, the larger."""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the line over the versions in order."""
        if tokens.weight_version is None:
            return None
        versions, place, counts = np.unique(tokens.weight_version, return_inverse=True, return_counts=True)
        if len(versions) < 2 or int((counts >= MANY).sum()) < 2:
            return None
        means = np.bincount(place, tokens.relative) / counts
        filled = means[counts >= MANY]
        older = float(filled[0]) > float(filled[-1])
        x = (len(versions) - 1 - place if older else place).astype(np.float64)
        found = growth(tokens, x)
        ordered = filled[::-1] if older else filled
        if found is None or ordered[-1] < RISES * ordered[0] or int((np.diff(ordered) < 0).sum()) > len(ordered) // 4:
            return None
        line, rest = found
        word = "older" if older else "newer"
        shown = ", ".join(f"{int(version)}: {mean:.2f}" for version, mean in zip(versions[:6], means[:6], strict=True))
        return SignatureFit(
            p_value=min(1.0, 2 * line.upper),
            rest=rest,
            concerned=x > 0,
            says=f"|d| grows with {word} weights, {float(ordered[-1] / ordered[0]):.2f} times over {len(versions)} "
            "versions "
            f"(in scales, by version {shown})",
            where=f"weight versions {int(versions[0])} to {int(versions[-1])}, the {word} the more",
            fix="Check that every weight update reaches the rollout engine (a digest per tensor after the update), "
            "and that "
            "caches and captured graphs are dropped with it; score a token under the version that sampled it.",
            next_command="xcfg verify --help",
            refuted_by="With the learning rate at 0 the growth stays.",
            parameters={"last_over_first": float(ordered[-1] / ordered[0]), "versions": float(len(versions))},
        )


class SomeRanks:
    """E|d| = a on most ranks, b > a on some."""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the ranks above the widest gap between ranks."""
        if tokens.rank is None:
            return None
        ranks, place, counts = np.unique(tokens.rank, return_inverse=True, return_counts=True)
        usable = counts >= MANY
        if int(usable.sum()) < 2:
            return None
        means = np.where(usable, np.bincount(place, tokens.relative) / counts, 0.0)
        order = np.argsort(means)[np.argsort(usable[np.argsort(means)], kind="stable")]
        order = order[-int(usable.sum()) :]
        cut = int(np.argmax(np.diff(means[order]))) + 1
        high = order[cut:]
        group = np.isin(place, high)
        found = contrast(tokens, group)
        if found is None or found.ratio < RISES:
            return None
        named = ", ".join(str(int(rank)) for rank in sorted(ranks[high])[:8])
        signed = f", {found.shift:+.4f} nats on average" if found.shift else ""
        return SignatureFit(
            p_value=min(1.0, found.line.upper * 2 ** min(len(ranks) - 1, MOST)),
            rest=found.rest,
            concerned=group,
            says=f"|d| is {found.ratio:.2f} times as large on rank {named} as on the other "
            f"{len(order) - len(high)}{signed}",
            where=f"training rank {named} of {len(ranks)}",
            fix=f"Compare rank {named} with another rank: weights after the last update, dtype and kernel, "
            "environment variables, "
            "driver and library versions, its share of a sharded softmax.",
            refuted_by="The same sequences scored on another rank differ as much.",
            parameters={"ranks": float(len(high)), "ratio": found.ratio},
        )

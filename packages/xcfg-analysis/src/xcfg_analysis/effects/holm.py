"""Holm's correction over a family of tests, by statsmodels."""

from __future__ import annotations

from collections.abc import Sequence


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return the p values corrected by Holm's step-down procedure (Holm 1979); [] for []."""
    if not p_values:
        return []
    from statsmodels.stats.multitest import multipletests

    corrected = multipletests(list(p_values), method="holm")[1]
    return [float(value) for value in corrected]

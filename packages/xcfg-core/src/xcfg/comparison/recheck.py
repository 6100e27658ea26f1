"""Whether a stored comparison is what the stored scores give (contract, section 7)."""

from __future__ import annotations

import math
from typing import Any

from xcfg.schema.codec import plain
from xcfg.schema.result import Comparison

RELATIVE = 1e-12
"""Agreement of figures that pass through an exponential, whose last bit differs between machines."""
SELECTED = (
    "max_abs",
    "p50_abs",
    "p90_abs",
    "p95_abs",
    "p99_abs",
    "p999_abs",
    "first",
    "second",
    "difference",
)
SHARES = ("mismatch_ratio", "clipfrac0", "threshold")
MEANS = ("mean_abs", "bias", "mismatch_kl")
EXACT = frozenset((*SELECTED, *SHARES, *MEANS))
"""Figures that are the same bits everywhere: selections of stored values, shares of counts, exact sums."""
SHOWN = 20


def same_comparison(a: Comparison, b: Comparison) -> list[str]:
    """Return where two comparisons differ, as `path: a, b`; empty when they agree.

    Statuses, texts, masks' counts, maxima, worst tokens and exact means must be equal; other figures to 1e-12
    relative. A figure that only one of them has is a difference.
    """
    found: list[str] = []
    _walk(plain(a), plain(b), "", "", found)
    return found[:SHOWN] + ([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else [])


def _walk(a: Any, b: Any, path: str, name: str, found: list[str]) -> None:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(set(a) | set(b)):
            where = f"{path}.{key}" if path else str(key)
            if key in a and key in b:
                _walk(a[key], b[key], where, str(key), found)
            else:
                found.append(f"{where}: only in the {'first' if key in a else 'second'}")
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            found.append(f"{path}: {len(a)} entries, {len(b)} entries")
        for index, (left, right) in enumerate(zip(a, b, strict=False)):
            _walk(left, right, f"{path}[{index}]", name, found)
    elif not _equal(a, b, name):
        found.append(f"{path}: {a!r}, {b!r}")


def _equal(a: Any, b: Any, name: str) -> bool:
    numbers = (int, float)
    if isinstance(a, bool) or isinstance(b, bool) or not (isinstance(a, numbers) and isinstance(b, numbers)):
        return type(a) is type(b) and bool(a == b)
    if name in EXACT or (isinstance(a, int) and isinstance(b, int)):
        return a == b
    return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=0.0)

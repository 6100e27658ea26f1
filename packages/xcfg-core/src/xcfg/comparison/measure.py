"""The rule and the diagnostics of one edge, d = first - second in float64 (contract, section 4).

A diagnostic that overflows or is undefined is None, never NaN or infinity. Means are exactly rounded sums of
their float64 terms; quantiles are linear (numpy's method of that name), on the exact |d|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xcfg.comparison.aliases import stack_aliases
from xcfg.comparison.edges import ROLLOUT_ARMS, TRAINING, Edge
from xcfg.comparison.exact import Float
from xcfg.comparison.figures import Figures
from xcfg.comparison.groups import by_bucket, group_stats
from xcfg.comparison.layout import Layout, chunks
from xcfg.comparison.sums import EdgeSums, Index
from xcfg.schema.codec import evolve
from xcfg.schema.contract import Contract
from xcfg.schema.names import Status
from xcfg.schema.result import EdgeResult, GroupStat, WorstToken

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
WORST = 10


@dataclass(frozen=True)
class Measured:
    """An edge's figures and its per-token arrays over all T tokens.

    mismatch: bool [T]. difference: float64 [T], NaN outside the edge's mask.
    """

    result: EdgeResult
    mismatch: NDArray[np.bool_]
    difference: Float


def unmeasured(edge: Edge) -> Measured:
    """Return an edge without figures: its status says why."""
    total = len(edge.mask)
    result = EdgeResult(
        name=edge.name,
        first=edge.first.arm,
        second=edge.second.arm,
        status=edge.status.value,
        comparable=False,
        reason=edge.reason,
        compute_dtype=edge.compute_dtype,
        threshold=edge.threshold,
        active_tokens=int(np.count_nonzero(edge.mask)) if edge.status is not Status.ZERO_ACTIVE_TOKENS else 0,
    )
    return Measured(result, np.zeros(total, dtype=np.bool_), np.full(total, np.nan))


def measure(edge: Edge, layout: Layout, contract: Contract) -> Measured:
    """Return the figures of an edge whose scores are finite; needs at least one token under its mask."""
    difference, mismatch, sizes = _differences(edge)
    top = float(sizes.max())
    if not math.isfinite(top):
        return unmeasured(_overflowed(edge))
    sums, low, high = _sums(edge, layout, contract, difference, mismatch, top)
    quantiles = np.quantile(sizes, QUANTILES, method="linear", overwrite_input=True)
    clipped = _outside(difference, contract)
    figures = Figures(sums, len(sizes), low, high, float(sizes.min()), top)
    judged = edge.status is Status.PASS
    mismatches = int(np.count_nonzero(mismatch))
    status = Status.MISMATCH if judged and mismatches else edge.status
    named = dict(zip(("p50_abs", "p90_abs", "p95_abs", "p99_abs", "p999_abs"), map(float, quantiles), strict=True))
    result = EdgeResult(
        name=edge.name,
        first=edge.first.arm,
        second=edge.second.arm,
        status=status.value,
        comparable=judged,
        reason=edge.reason,
        compute_dtype=edge.compute_dtype,
        threshold=edge.threshold,
        active_tokens=len(sizes),
        mismatches=mismatches,
        mismatch_ratio=mismatches / len(sizes) if edge.threshold is not None else None,
        max_abs=top,
        clipfrac0=clipped / len(sizes),
        worst=_worst(edge, layout, difference, sizes),
        by_rank=_by_rank(edge, sums),
        by_sequence=group_stats(sums.sequence, sums.scale, str),
        aliases=stack_aliases(figures) if edge.first.arm == TRAINING and edge.second.arm in ROLLOUT_ARMS else {},
    )
    edges = contract.descriptive.probability_edges
    result = evolve(result, **named, **figures.shared(), **by_bucket(sums, edges))
    return Measured(result, mismatch, difference)


def _overflowed(edge: Edge) -> Edge:
    reason = "the difference of two scores overflows float64, so one of them is no log probability"
    return replace(edge, status=Status.INVALID_ARTIFACT, reason=reason)


def _differences(edge: Edge) -> tuple[Float, NDArray[np.bool_], Float]:
    """Return difference [T], mismatch [T] and |d| [active], in order of the flat index."""
    total = len(edge.mask)
    difference = np.full(total, np.nan)
    mismatch = np.zeros(total, dtype=np.bool_)
    sizes = np.empty(int(np.count_nonzero(edge.mask)))
    filled = 0
    for part in chunks(total):
        mask = edge.mask[part]
        with np.errstate(over="ignore"):
            d = edge.first.logprob[part][mask].astype(np.float64) - edge.second.logprob[part][mask].astype(np.float64)
        size = np.abs(d)
        difference[part][mask] = d
        sizes[filled : filled + len(d)] = size
        filled += len(d)
        if edge.threshold is not None:
            mismatch[part][mask] = size > edge.threshold
    return difference, mismatch, sizes


def _sums(
    edge: Edge, layout: Layout, contract: Contract, difference: Float, mismatch: NDArray[np.bool_], top: float
) -> tuple[EdgeSums, float, float]:
    """Return the sums over the edge's tokens, and the least and greatest d."""
    edges = [math.log(chance) for chance in contract.descriptive.probability_edges]
    width = len(edges) + 1
    owners = (edge.first.owner_rank, edge.second.owner_rank)
    ranks = tuple(0 if owner is None else max(int(owner.max(initial=-1)) + 2, 1) for owner in owners)
    start = int(np.argmax(edge.mask))
    origin = (float(edge.first.logprob[start]), float(edge.second.logprob[start]))
    sums = EdgeSums(layout.rollout.sequence_count, layout.buckets * width, (ranks[0], ranks[1]), _scale(top), origin)
    low, high = math.inf, -math.inf
    for part in chunks(len(edge.mask)):
        mask = edge.mask[part]
        if not mask.any():
            continue
        d = difference[part][mask]
        low, high = min(low, float(d.min())), max(high, float(d.max()))
        inside = edge.by_probability_of.logprob[part][mask].astype(np.float64)
        bucket = layout.bucket[part][mask].astype(np.int64) * width
        for limit in edges:
            bucket += inside >= limit
        scored = [None if owner is None else np.maximum(owner[part][mask].astype(np.int64) + 1, 0) for owner in owners]
        index = Index(layout.sequence[part][mask], bucket, (scored[0], scored[1]))
        first, second = (side.logprob[part][mask].astype(np.float64) for side in (edge.first, edge.second))
        sums.add(first, second, d, mismatch[part][mask], index)
    return sums, low, high


def _scale(top: float) -> float:
    """Return the power of two that divides d before squaring: 1, unless squares would over- or underflow."""
    exponent = math.frexp(top)[1]
    return 1.0 if top == 0.0 or -400 < exponent < 500 else math.ldexp(1.0, exponent - 1)


def _outside(difference: Float, contract: Contract) -> int:
    """Return how many exp(d) lie outside the clip range; compared as d against its logarithms."""
    low, high = math.log(contract.clip_range.low), math.log(contract.clip_range.high)
    return sum(
        int(np.count_nonzero((difference[part] < low) | (difference[part] > high))) for part in chunks(len(difference))
    )


def _worst(edge: Edge, layout: Layout, difference: Float, sizes: Float) -> tuple[WorstToken, ...]:
    """Return the ten largest |d|, ties to the lowest flat index. sizes: |d| [active], reordered."""
    count = min(WORST, len(sizes))
    sizes.partition(len(sizes) - count)
    least = float(sizes[len(sizes) - count])
    above: list[int] = []
    equal: list[int] = []
    for part in chunks(len(difference)):
        size = np.abs(difference[part])
        above += (np.flatnonzero(size > least) + part.start).tolist()
        if len(equal) < count:
            equal += (np.flatnonzero(size == least)[:count] + part.start).tolist()
    chosen = sorted((above + equal)[:count], key=lambda at: (-abs(difference[at]), at))
    rollout = layout.rollout
    return tuple(
        WorstToken(
            sequence=int(layout.sequence[at]),
            position=int(rollout.tensors["position_ids"][at]),
            token_id=int(rollout.token_ids[at]),
            first=float(edge.first.logprob[at]),
            second=float(edge.second.logprob[at]),
            difference=float(difference[at]),
        )
        for at in chosen
    )


def _by_rank(edge: Edge, sums: EdgeSums) -> tuple[GroupStat, ...]:
    """Return figures by the rank that scored the token: `training:0`, `rollout_decode:unowned`."""
    found: tuple[GroupStat, ...] = ()
    for arm, grouping in zip((edge.first.arm, edge.second.arm), sums.ranks, strict=True):
        found += group_stats(
            grouping,
            sums.scale,
            lambda group, arm=arm: f"{arm}:{group - 1 if group else 'unowned'}",  # type: ignore[misc]
        )
    return found

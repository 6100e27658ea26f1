"""Downstream series (reward, KL, gradient norm, ...): an optional input that ranks severity and decides nothing.

Two tests, both of ranks. A series *moves* at the step that Pettitt's test names (Pettitt 1979: the split with the
largest Mann-Whitney statistic, p = 2 exp(-6 K^2 / (n^3 + n^2))), at p < 0.05. A case is *worse* than the reference case
in a metric by a one-sided Wilcoxon signed-rank test over blocks of consecutive steps, corrected by Holm over all cases
and metrics. Steps of one training run are not independent; blocks mend that in part, several seeds mend it better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from xcfg.schema.rules import Severity

from xcfg_analysis.effects.holm import adjusted

Float = NDArray[np.float64]
WORSE = {
    "reward": -1.0,
    "kl": 1.0,
    "grad_norm": 1.0,
    "update_norm": 1.0,
    "entropy": -1.0,
    "clip_fraction": 1.0,
    "ratio": 1.0,
}
"""Metric -> the direction that is worse; a ratio counts by its distance from 1."""
HEALTH = ("reward", "grad_norm", "update_norm")
"""What a short run is called healthy by: KL rises and entropy falls in any training."""
PRODUCTION = ("A5", "production", "baseline", "")
REFERENCE = "A0"
LEVEL = 0.05
FEWEST = 11
"""Steps below which no change is looked for: with 10 even a perfect step has p 0.066."""
MOST_BLOCKS, FEWEST_BLOCKS = 16, 8


@dataclass(frozen=True)
class Trajectory:
    """One case. metrics: name -> (steps int64 [n], values float64 [n]), the mean over seeds, steps ascending."""

    metrics: Mapping[str, tuple[NDArray[np.int64], Float]]

    @property
    def length(self) -> int:
        """The largest number of steps that a metric has."""
        return max((len(steps) for steps, _ in self.metrics.values()), default=0)


@dataclass(frozen=True)
class Series:
    """The series of all cases by name (a profile point, a label or a case id; `` where the file names none)."""

    cases: Mapping[str, Trajectory]
    remarks: tuple[str, ...] = field(default=())

    def of_production(self) -> Trajectory:
        """Return the series of the production point; an empty one where there is none."""
        name = next((name for name in PRODUCTION if name in self.cases), None)
        return Trajectory({}) if name is None else self.cases[name]


@dataclass(frozen=True)
class Change:
    """Where a series changes most. step: the first one after the split. worse: whether its mean then is worse."""

    metric: str
    step: int
    p: float
    worse: bool

    @property
    def moves(self) -> bool:
        """Whether the change is more than chance."""
        return self.p < LEVEL


@dataclass(frozen=True)
class Collapse:
    """Whether the reward rises and then collapses, and at which step it was highest."""

    found: bool
    step: int

    def __bool__(self) -> bool:
        """Whether it was found."""
        return self.found


def changes(trajectory: Trajectory) -> tuple[Change, ...]:
    """Return the change of every metric with at least FEWEST steps."""
    found = []
    for metric, (steps, values) in sorted(trajectory.metrics.items()):
        if len(steps) < FEWEST:
            continue
        scored = _scored(metric, values)
        split, p = pettitt(scored)
        rise = float(scored[split:].mean() - scored[:split].mean())
        found.append(Change(metric, int(steps[split]), p, rise * WORSE[metric] > 0))
    return tuple(found)


def adverse_changes(told: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes for the worse among the metrics that health is judged by."""
    return tuple(item for item in told if item.metric in HEALTH and item.moves and item.worse)


def pettitt(values: Float) -> tuple[int, float]:
    """Return (index of the first value after the most likely change, p value) of float64 [n], n >= 2."""
    from scipy.stats import rankdata

    count = len(values)
    before = np.cumsum(rankdata(values))[:-1]
    statistic = 2.0 * before - np.arange(1, count) * (count + 1.0)
    at = int(np.argmax(np.abs(statistic)))
    p = 2.0 * math.exp(-6.0 * float(statistic[at]) ** 2 / (count**3 + count**2))
    return at + 1, min(1.0, p)


def collapse(trajectory: Trajectory) -> Collapse | None:
    """Return whether the reward rises to a peak and then loses at least half of the rise; None if it cannot be told.

    Both limbs need a trend by Kendall's tau (one-sided, p < 0.05). The peak is that of a running mean over a tenth of
    the steps, and so are the levels.
    """
    from scipy.stats import kendalltau

    steps, values = trajectory.metrics.get("reward", (np.zeros(0, dtype=np.int64), np.zeros(0)))
    if len(steps) < 2 * FEWEST:
        return None
    width = max(3, len(values) // 10)
    smooth = np.convolve(values, np.full(width, 1.0 / width), mode="valid")
    at = int(np.argmax(smooth))
    peak = at + width // 2
    limbs = values[: peak + 1], values[peak:]
    if min(len(limb) for limb in limbs) < width + 2:
        return Collapse(False, int(steps[peak]))
    index = [np.arange(len(limb)) for limb in limbs]
    up = kendalltau(index[0], limbs[0], alternative="greater").pvalue
    down = kendalltau(index[1], limbs[1], alternative="less").pvalue
    lost = smooth[at] - smooth[-1] >= 0.5 * (smooth[at] - smooth[0])
    return Collapse(bool(up < LEVEL and down < LEVEL and lost), int(steps[peak]))


def rank_severity(series: Series) -> tuple[Severity, ...]:
    """Return how much worse each case is than the reference case A0, the worst first; empty without both."""
    reference = series.cases.get(REFERENCE)
    if reference is None:
        return ()
    found: list[tuple[str, str, float, float | None, float]] = []
    for case, trajectory in sorted(series.cases.items()):
        for metric in sorted(trajectory.metrics):
            if case != REFERENCE and metric in reference.metrics:
                compared = _compare(metric, trajectory.metrics[metric], reference.metrics[metric])
                if compared is not None:
                    found.append((case, metric, *compared))
    corrected = adjusted([item[4] for item in found])
    ranked = [
        Severity(case=case, metric=metric, shift=shift, effect=effect, p=p, adjusted=q, worse=q < LEVEL)
        for (case, metric, shift, effect, p), q in zip(found, corrected, strict=True)
    ]
    return tuple(sorted(ranked, key=lambda item: (item.adjusted, -(item.effect or 0.0), item.case, item.metric)))


def _compare(
    metric: str, mine: tuple[NDArray[np.int64], Float], its: tuple[NDArray[np.int64], Float]
) -> tuple[float, float | None, float] | None:
    """Return (shift, effect, p), or None with too few common steps."""
    from scipy.stats import wilcoxon

    common, here, there = np.intersect1d(mine[0], its[0], return_indices=True)
    blocks = min(MOST_BLOCKS, len(common) // 2)
    if blocks < FEWEST_BLOCKS:
        return None
    ground = _scored(metric, its[1][there])
    difference = _scored(metric, mine[1][here]) - ground
    means = np.array([part.mean() for part in np.array_split(difference, blocks)])
    worse = means * WORSE[metric]
    p = float(wilcoxon(worse, alternative="greater").pvalue) if np.any(worse) else 1.0
    spread = float(ground.std(ddof=1))
    effect = float(worse.mean()) / spread if spread > 0 else None
    return float(means.mean()), effect, p


def _scored(metric: str, values: Float) -> Float:
    return np.abs(values - 1.0) if metric == "ratio" else values

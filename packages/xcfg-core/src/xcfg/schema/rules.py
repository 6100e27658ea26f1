"""What the rules of an ablation say of a run: part of its analysis."""

from __future__ import annotations

from xcfg.schema._base import Record


class Conclusion(Record):
    """One rule. holds: None where the run, or the downstream series, cannot tell. evidence: case ids."""

    rule: str
    holds: bool | None
    text: str
    evidence: tuple[str, ...] = ()


class Level(Record):
    """Where on the alignment ladder to stop, `L0` to `L5`; empty where production was not measured.

    sets: the smallest sets of changes that were run and pass, as axis keys. left: what may stay different with the
    first of them. Both go by the threshold, as the level does.
    """

    level: str
    text: str
    action: str
    evidence: tuple[str, ...] = ()
    sets: tuple[tuple[str, ...], ...] = ()
    left: tuple[str, ...] = ()


class Severity(Record):
    """How much worse a downstream metric is in one case than in the reference case; never a verdict.

    shift: mean over blocks of steps of (case - reference), in the metric's unit. effect: the same in standard
    deviations of the reference's steps, positive where the case is worse, None where the reference does not vary.
    p: one-sided Wilcoxon signed-rank test over the blocks; adjusted: by Holm over all cases and metrics.
    """

    case: str
    metric: str
    shift: float
    effect: float | None
    p: float
    adjusted: float
    worse: bool


class Findings(Record):
    """What the rules say of one run. severity: the worst first. remarks: what the series lack."""

    level: Level
    interpretation: tuple[Conclusion, ...]
    decisions: tuple[Conclusion, ...]
    severity: tuple[Severity, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def held(self) -> tuple[Conclusion, ...]:
        """The rules that hold."""
        return tuple(item for item in (*self.interpretation, *self.decisions) if item.holds)

"""The documents of `xcfg cube`: a run as a cube, its rows, what lies in a cell, and one figure over two axes."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record, Value
from xcfg.schema.gradient import GradientSummary
from xcfg.schema.result import AssessmentResult, EdgeResult

CUBE = "xcfg.cube.v1"
PIVOT = "xcfg.pivot.v1"


class AxisCell(Record):
    """One knob, or `operators.<operation>.<side>`, of one case.

    requested: None where the case leaves it alone. actual: what every rank read back, None where they differ or saw
    nothing. status: names.Applied, "" where nothing was reported. exercised: names.Exercised of the weakest rank.
    sides: the same by side, for a knob that acts on both.
    """

    path: str
    requested: Value | None
    actual: Value | None
    status: str
    exercised: str
    sides: dict[str, str] = {}


class ArmCell(Record):
    """One side score of a case: where it lies and in which processes it was made.

    key: of the score in the store. digest: SHA-256 of its dtype and active values: equal digests are equal bits.
    processes: process ids by rank; empty where the program that scored did not say. started: their start times in clock
    ticks, which tell a process from a later one with its id. dtype: the compute dtype that every rank observed, or
    empty. environment: digest of what was installed and chosen where it was scored. claims: what its runtime says of
    determinism, by name. gradient: what its score looked at, None where it looked at none.
    """

    arm: str
    key: str
    digest: str
    dtype: str
    processes: tuple[int, ...] = ()
    mechanism: dict[str, Any] = {}
    started: tuple[str, ...] = ()
    environment: str = ""
    claims: dict[str, bool] = {}
    gradient: GradientSummary | None = None


class Row(Record):
    """One case, by its newest valid attempt.

    role: names.Role; controls of the baseline are rows too. delta: what differs from the baseline, by axis key.
    outside: what differs from the baseline and no knob declares: `runtime_options`, the scoring environment; by name.
    devices: by side. seconds: build and score, over the arms, a shared score included. verdict_edge: name in `edges`;
    empty where nothing was compared.
    """

    case_id: str
    attempt: str
    label: str
    role: str
    index: int
    delta: dict[str, Any]
    axes: dict[str, AxisCell]
    runtimes: dict[str, str]
    devices: dict[str, str]
    status: str
    reason: str
    verdict_edge: str
    verdict_arm: str
    threshold: float | None
    edges: dict[str, EdgeResult]
    assessment: AssessmentResult | None
    arms: dict[str, ArmCell]
    seconds: dict[str, float]
    coupled: tuple[dict[str, Any], ...] = ()
    undeclared: tuple[dict[str, Any], ...] = ()
    outside: tuple[str, ...] = ()


class Cube(Record):
    """A run. rows: in the order of the plan, the baseline first. missing: planned cases without a valid attempt.

    experiment: as it was sealed. definitions: what plugins say of each axis (tier, source class, group).
    runtimes: the pair of all rows. others: pairs that ran the experiment as well and are left out. rejected: attempts
    that were sealed later than the row that stands for their case and are altered or gone, with the reason.
    """

    schema_version: str
    experiment_id: str
    experiment: dict[str, Any]
    contract: dict[str, str]
    rollout: str
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()
    definitions: dict[str, dict[str, Any]] = {}
    runtimes: dict[str, str] = {}
    others: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()

    @property
    def baseline(self) -> Row | None:
        """The baseline; None where it has no valid attempt."""
        return next((row for row in self.rows if row.role == "case" and not row.delta), None)

    @property
    def cases(self) -> tuple[Row, ...]:
        """The rows that change something."""
        return tuple(row for row in self.rows if row.role == "case" and row.delta)


class Pivot(Record):
    """One figure over two axes. cells: by row value, then column value; None where no case has both values.

    Only cases that change nothing but these two axes are in it: any other case would put a second number in a cell.
    """

    schema_version: str
    rows: str
    columns: str
    figure: str
    row_values: tuple[Any, ...]
    column_values: tuple[Any, ...]
    cells: tuple[tuple[Any, ...], ...]

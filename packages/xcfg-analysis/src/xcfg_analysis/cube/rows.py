"""What every analysis of a run reads: the cube, its rows, and what lies in a cell."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record, Value
from xcfg.schema.result import AssessmentResult, EdgeResult

CUBE = "xcfg.cube.v1"


class AxisCell(Record):
    """One knob, or `operators.<operation>.<side>`, of one case.

    requested: None where the case leaves it alone. actual: what every rank read back, None where they differ or saw
    nothing. status: names.Applied, "" where nothing was reported. exercised: names.Exercised of the weakest rank.
    """

    path: str
    requested: Value | None
    actual: Value | None
    status: str
    exercised: str


class ArmCell(Record):
    """One side score of a case: where it lies and in which processes it was made.

    key: of the score in the store. digest: SHA-256 of its float32 values [T], so that equal digests are equal bits.
    processes: process ids by rank. dtype: the compute dtype that every rank observed, or empty.
    """

    arm: str
    key: str
    digest: str
    dtype: str
    processes: tuple[int, ...] = ()
    mechanism: dict[str, Any] = {}


class Row(Record):
    """One case, by its newest valid attempt.

    role: names.Role; controls of the baseline are rows too. delta: what differs from the baseline, by axis key.
    outside: differences of `runtime_options` between the case and the baseline, which no knob declares. devices: by
    side. seconds: build, score, compare. verdict_edge: name in `edges`; empty where nothing was compared.
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

    experiment: as it was sealed. definitions: what plugins said of each axis (tier, source class, group).
    """

    schema_version: str
    experiment_id: str
    experiment: dict[str, Any]
    contract: dict[str, str]
    rollout: str
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()
    definitions: dict[str, dict[str, Any]] = {}

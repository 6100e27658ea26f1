"""The documents of `xcfg gate`: what was found, and the baseline that later runs are held against."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Input, Record
from xcfg.schema.result import Interval

GATE = "xcfg.gate.v1"
BASELINE = "xcfg.gate_baseline.v1"


class Finding(Record):
    """Why a case, or the run, does not go through. exit_code: 1 a number, 3 not measured, 4 an engine failed."""

    kind: str
    text: str
    exit_code: int


class GateCase(Record):
    """One case as it was gated.

    slices: of the experiment, to which it belongs. corridor: figure -> what the baseline allows; empty without one.
    judged_by: `contract` or `baseline`. A MISMATCH that a baseline lets through is still a MISMATCH.
    """

    case_id: str
    label: str
    role: str
    status: str
    assessment: str
    reason: str
    slices: tuple[str, ...]
    active_tokens: int
    figures: dict[str, float]
    corridor: dict[str, Interval]
    judged_by: str
    seconds: float
    findings: tuple[Finding, ...] = ()


class GateReport(Record):
    """`xcfg gate --json`. findings: of the run as a whole. conclusions: what the rules say of it, in words.

    missing: planned cases without a valid attempt, and cases of the baseline that the run does not hold.
    """

    schema_version: str
    experiment_id: str
    exit_code: int
    baseline: str
    contract: dict[str, str]
    cases: tuple[GateCase, ...]
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()
    ladder_level: str = ""
    conclusions: tuple[str, ...] = ()


class BaselineFigure(Input):
    """A figure of one case and the corridor in which later runs have to stay; both ends are allowed values."""

    value: float
    low: float
    high: float


class BaselineCase(Input):
    """One case of a baseline; found again by its label and held to its case id."""

    case_id: str
    role: str
    status: str
    assessment: str
    active_tokens: int
    figures: dict[str, BaselineFigure]


class GateBaseline(Input):
    """A baseline file. corridor: how the ends were made, in words. devices: by side, as the baseline case had them.

    settings: dotted name -> value of what every case shares; where it is empty, a case that changed cannot say where.
    """

    schema_version: str
    experiment_id: str
    contract: dict[str, str]
    rollout: str
    runtimes: dict[str, str]
    devices: dict[str, str]
    corridor: str
    cases: dict[str, BaselineCase]
    settings: dict[str, Any] = {}

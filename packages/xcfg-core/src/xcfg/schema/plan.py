"""What the planner returns: cases with stable ids, cells that were filtered, and issues."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record, Value
from xcfg.schema.experiment import ContractRef
from xcfg.schema.identity import IdentityDigests
from xcfg.schema.operators import OperatorChoice

PLAN_SCHEMA = "xcfg.plan.v1"


class PlanIssue(Record):
    """Something in the file that the planner corrected or cannot use; code is stable."""

    code: str
    message: str
    path: str = ""
    fatal: bool = False


class FilteredCell(Record):
    """A cell that a constraint removed: it is no case."""

    label: str
    delta: dict[str, Any]
    code: str
    reason: str


class ExperimentCase(Record):
    """One fully normalised grid point.

    knobs: every knob, canonical values; `path@side` stands beside `path` only where one side differs.
    delta: the declared paths in which the case differs from the baseline (empty for it and for its controls).
    operators: operation -> side -> choice, complete.
    """

    case_id: str
    label: str
    knobs: dict[str, Value]
    delta: dict[str, Any]
    operators: dict[str, dict[str, OperatorChoice]]
    runtime_options: dict[str, dict[str, Any]] = {}
    role: str = "case"
    index: int = 0
    issues: tuple[PlanIssue, ...] = ()


class Coverage(Record):
    """What a covering array covers. pairs: of changed values of two axes; covered: that stand together in some case.

    rows: cases beside the baseline, the single changes and the controls. The pairs that are not covered are refused by
    constraints, and are among the filtered cells.
    """

    pairs: int
    covered: int
    rows: int
    strength: int = 2


class ExperimentPlan(Record):
    """The plan: cases in a deterministic order, the baseline first.

    combinations: the case of each `Experiment.combinations`, or nothing where it was filtered.
    """

    experiment_id: str
    scenario_id: str
    contract: ContractRef
    identity: IdentityDigests
    strict_fallback: bool
    cases: tuple[ExperimentCase, ...]
    filtered: tuple[FilteredCell, ...] = ()
    issues: tuple[PlanIssue, ...] = ()
    reference: bool = True
    scenario: dict[str, Any] = {}
    combinations: tuple[str, ...] = ()
    coverage: Coverage | None = None

"""The planning journey: no engine is imported, nothing is written."""

from __future__ import annotations

from pathlib import Path

from xcfg.flow.inputs import Selection, load_inputs
from xcfg.plugin.manager import PluginManager
from xcfg.schema.plan import PLAN_SCHEMA
from xcfg.schema.summary import PlanCaseLine, PlanSummary


def plan(file: Path, manager: PluginManager, selection: Selection | None = None) -> PlanSummary:
    """Return the plan of the experiment in `file` as `xcfg plan --json` prints it."""
    loaded = load_inputs(file, manager, selection)
    return PlanSummary(
        schema_version=PLAN_SCHEMA,
        experiment_id=loaded.experiment.experiment_id,
        cases=tuple(
            PlanCaseLine(case_id=case.case_id, label=case.label, delta=case.delta, issues=case.issues)
            for case in loaded.plan.cases
        ),
        filtered=loaded.plan.filtered,
        issues=loaded.plan.issues,
        coverage=loaded.plan.coverage if len(loaded.plan.cases) == loaded.all_cases else None,
    )

"""From an experiment and the active knobs to a plan: cases, filtered cells, issues. No engine."""

from __future__ import annotations

from xcfg.planning.plan import plan_experiment
from xcfg.planning.select import select_cases, slice_issues
from xcfg.planning.settings import complete_settings

__all__ = ["complete_settings", "plan_experiment", "select_cases", "slice_issues"]

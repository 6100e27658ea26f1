"""What to do next: one command, or one change of the experiment file, that would tell most."""

from __future__ import annotations

from collections.abc import Sequence

from xcfg.schema.analysis import Floor

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.floors.floors import MEASURED
from xcfg_analysis.page.causes import Said, is_excess

SWAPS = "operators.selected_logprob.training and .rollout = reference, and every dtype = float32,"
REDUCTION = "reduction>=90%"
"""What is asked for where rounding explains production as it is, so that `explained` would be met by nothing at all."""
CONTROLS = '"controls": {"repeats": 1, "fresh_processes": 2, "shuffled": 1}'


def next_command(evidence: Evidence, baseline: Row, floors: Sequence[Floor], said: Said) -> str:
    """Return what to do next, the most telling step first."""
    run = f"runs/{evidence.cube.experiment_id}"
    least = evidence.run.contract.assessment.min_sequences
    if evidence.sequences < least:
        return f"xcfg freeze ...  # {evidence.sequences} sequences give no interval: freeze {least} at least, run again"
    if evidence.cube.missing:
        lacking = len(evidence.cube.missing)
        return f"xcfg run FILE  # of {evidence.cube.experiment_id}: {lacking} planned cases have no result"
    narrowing = [cause for cause in said.causes if cause.direction == "narrows"]
    commands = {item.record.name for item in evidence.plugins.commands()}
    if narrowing and "minimize" in commands:
        objective = "explained" if is_excess(baseline) else f"'{REDUCTION}'"
        return f"xcfg minimize {run} --objective {objective}"
    if narrowing:
        first = narrowing[0]
        return (
            f"xcfg run FILE  # with {first.knob} = {first.value} and other frozen sequences: does the gap stay closed?"
        )
    if is_excess(baseline):
        return f"xcfg run FILE  # with {SWAPS} among its interventions: which side leaves the reference?"
    if not any(item.status == MEASURED for item in floors):
        return f"xcfg run FILE  # with {CONTROLS} in it: without a control nothing can be exonerated by an interval"
    if said.lists["not_exercised"]:
        return (
            f"xcfg run FILE  # with more or longer sequences, so that {', '.join(said.lists['not_exercised'])} has "
            "something to do"
        )
    return f"xcfg cube {run}"

"""The sets of a run that has been executed, ready to be described: what a person asks for, and what a page shows."""

from __future__ import annotations

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.minimize.atoms import not_alignable
from xcfg_analysis.minimize.from_grid import from_grid
from xcfg_analysis.minimize.objective import Objective, parse
from xcfg_analysis.minimize.report import Searched
from xcfg_analysis.samples.interval import IntervalRule


def searched(evidence: Evidence, objective: str) -> Searched:
    """Return the sets among the cases of a run by `objective`; nothing is scored.

    Raises UsageError for a wrong name, NothingSelectedError without a baseline.
    """
    chosen: Objective = parse(objective, IntervalRule.of(evidence.run.contract.assessment))
    executed = from_grid(evidence.cube, chosen, evidence)
    baseline = evidence.cube.baseline
    varied = {knob.partition("@")[0] for atom in executed.atoms for knob in atom.knobs}
    axes = () if baseline is None else baseline.axes
    fixed = not_alignable((path for path in axes if path.partition("@")[0] not in varied), evidence.plugins.knobs())
    folder = evidence.run.folder
    return Searched(
        objective=chosen,
        atoms=executed.atoms,
        found=executed.found,
        judged=executed.judged,
        rows={subset: rows[0] for subset, rows in executed.rows.items()},
        fixed=fixed,
        budget=len(executed.found.trials),
        repeats=max((trial.repeats for trial in executed.found.trials), default=0),
        source=folder.name,
        place=folder,
        notes=(
            "The sets are the cases that the run holds; sets that it does not hold were not tried.",
            *(f"A newer attempt is altered or gone and does not count: {text}" for text in evidence.cube.rejected),
        ),
        whole=executed.whole,
    )

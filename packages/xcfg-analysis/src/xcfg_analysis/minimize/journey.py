"""The two journeys of `xcfg minimize`: a search that scores, and the sets of a run that has been executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xcfg
from xcfg.errors import UsageError
from xcfg.schema import codec
from xcfg.schema.analysis import Analysis
from xcfg.schema.experiment import MAX_CASES_LIMIT

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.minimize.atoms import not_alignable
from xcfg_analysis.minimize.from_grid import from_grid
from xcfg_analysis.minimize.objective import parse
from xcfg_analysis.minimize.probes import Prober, find_atoms
from xcfg_analysis.minimize.report import Searched, document
from xcfg_analysis.minimize.search import search
from xcfg_analysis.samples.interval import IntervalRule


def minimize_experiment(
    file: Path,
    objective: str,
    *,
    budget: int,
    repeats: int = 0,
    plugins: Any = None,
    options: Mapping[str, Any] | None = None,
) -> Analysis:
    """Return the minimal sets of align entries of the experiment in `file`; what they need is scored.

    options: keywords of `xcfg.probing`: engines live as long as the search does. The document is stored in analysis/
    of the run. Raises XcfgError.
    """
    manager = plugins or xcfg.load_plugins()
    parse(objective)  # a wrong name is refused before anything is loaded
    if budget * (1 + repeats) > MAX_CASES_LIMIT:
        raise UsageError(
            f"a budget of {budget} sets with {repeats} repeats may need {budget * (1 + repeats)} cases",
            hint=f"An experiment has at most {MAX_CASES_LIMIT}; lower --budget or --repeats.",
        )
    contract = xcfg.load(file, plugins=manager).contract
    chosen = parse(objective, IntervalRule.of(contract.assessment))
    known = find_atoms(file, manager)
    with xcfg.probing(file, plugins=manager, **(options or {})) as ask:
        prober = Prober(ask, manager, known.atoms, chosen)
        found = search(len(known.atoms), prober, budget=budget, repeats=repeats)
        prober.seal_plan()
    analysis = document(
        Searched(
            objective=chosen,
            atoms=known.atoms,
            found=found,
            judged=prober.judged,
            rows=prober.rows,
            fixed=known.fixed,
            budget=budget,
            repeats=repeats,
            source=file.name,
            place=prober.folder,
            notes=known.idle,
        )
    )
    if prober.folder is not None:
        xcfg.open_run(prober.folder, runtimes=prober.pair).put_analysis(codec.plain(analysis))
    return analysis


def minimize_run(folder: Path, objective: str, *, plugins: Any = None, runtimes: str = "") -> Analysis:
    """Return the minimal sets among the cases that `folder` (runs/<experiment>) holds; nothing is scored or stored."""
    manager = plugins or xcfg.load_plugins()
    evidence = Evidence.open(folder, plugins=manager, runtimes=runtimes)
    chosen = parse(objective, IntervalRule.of(evidence.run.contract.assessment))
    executed = from_grid(evidence.cube, chosen, evidence)
    baseline = evidence.cube.baseline
    varied = {knob.partition("@")[0] for atom in executed.atoms for knob in atom.knobs}
    axes = () if baseline is None else baseline.axes
    fixed = not_alignable((path for path in axes if path.partition("@")[0] not in varied), manager.knobs())
    return document(
        Searched(
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
        )
    )

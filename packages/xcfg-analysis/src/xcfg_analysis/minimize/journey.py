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
from xcfg_analysis.minimize.objective import parse
from xcfg_analysis.minimize.of_run import searched
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
            whole=frozenset(range(len(known.atoms))),
        )
    )
    if prober.folder is not None:
        xcfg.open_run(prober.folder, runtimes=prober.pair).put_analysis(codec.plain(analysis))
    return analysis


def minimize_run(folder: Path, objective: str, *, plugins: Any = None, runtimes: str = "") -> Analysis:
    """Return the minimal sets among the cases that `folder` (runs/<experiment>) holds; nothing is scored or stored."""
    manager = plugins or xcfg.load_plugins()
    evidence = Evidence.open(folder, plugins=manager, runtimes=runtimes)
    return codec.evolve(document(searched(evidence, objective)), next_command=f"xcfg cube {folder}")

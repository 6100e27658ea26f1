"""`xcfg minimize EXPERIMENT`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xcfg_analysis.minimize.run_options import run_options, to_run
from xcfg_analysis.options import common_options, emit


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path), metavar="EXPERIMENT")
@click.option(
    "--objective",
    required=True,
    metavar="NAME",
    help="verdict, explained, 'k3<=X' (nats) or 'reduction>=P%' (of mean d^2).",
)
@click.option(
    "--budget", type=click.IntRange(1), default=32, show_default=True, help="Different sets that are tried at most."
)
@click.option(
    "--repeats", type=click.IntRange(0, 64), default=2, show_default=True, help="Of each UNRESOLVED set, at most."
)
@run_options
@common_options
@click.pass_context
def minimize(
    context: click.Context, /, experiment: Path, objective: str, budget: int, repeats: int, **given: Any
) -> None:
    """Find the smallest sets of the file's `align` entries under which the two sides meet an objective.

    Every set that is tried is a case: scored, judged and sealed as `xcfg run` does it, and taken from there when the
    command is given again. EXPERIMENT may also be a folder runs/<experiment>: then the sets are the cases that it
    holds, and nothing is scored. An objective is met, failed or UNRESOLVED; none of them is called PASS.
    """
    from xcfg_analysis.minimize.journey import minimize_experiment, minimize_run
    from xcfg_analysis.minimize.show import text

    session: Any = context.obj
    if experiment.is_dir():
        found = minimize_run(experiment, objective, plugins=session.manager, runtimes=str(given["pair"] or ""))
    else:
        options = to_run(given, quiet=session.json)
        found = minimize_experiment(
            experiment, objective, budget=budget, repeats=repeats, plugins=session.manager, options=options
        )
    emit(context, found, lambda: text(found))
    context.exit(found.exit_code)

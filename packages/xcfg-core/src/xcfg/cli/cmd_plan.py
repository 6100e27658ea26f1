"""`xcfg plan FILE`: the cases an experiment would run, without importing an engine."""

from __future__ import annotations

from pathlib import Path

import click

from xcfg.cli._output import Session, common_options, emit, pass_session
from xcfg.cli._select import selection_of, selection_options
from xcfg.flow.plan import plan as plan_journey
from xcfg.schema.summary import PlanSummary


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@selection_options
@common_options
@pass_session
def plan(session: Session, file: Path, **selected: object) -> None:
    """Show the cases of the experiment in FILE: ids, what each one changes, what was filtered and why."""
    emit(session, plan_journey(file, session.manager, selection_of(selected)), _show)


def _show(summary: PlanSummary) -> None:
    click.echo(f"{summary.experiment_id}: {len(summary.cases)} cases")
    width = max(len(case.label) for case in summary.cases)
    for case in summary.cases:
        click.echo(f"  {case.case_id}  {case.label:<{width}}")
    if summary.coverage is not None:
        told = summary.coverage
        lost = f", {told.pairs - told.covered} are filtered" if told.covered < told.pairs else ""
        rows = f"{told.rows} more {'case' if told.rows == 1 else 'cases'}"
        click.echo(f"  covers {told.covered} of {told.pairs} pairs of changed values by {rows}{lost}")
    for cell in summary.filtered:
        click.echo(f"  filtered [{cell.code}] {cell.label}: {cell.reason}")
    for issue in summary.issues:
        click.echo(f"  issue [{issue.code}] {issue.message}")

"""The printed form of a run summary: one line per case, the verdict first."""

from __future__ import annotations

import click

from xcfg.schema.result import Comparison
from xcfg.schema.summary import CaseSummary, RunSummary

VERDICT_EDGE = "training_vs_rollout"
COLOURS = {"PASS": "green", "MISMATCH": "yellow"}


def number(value: float | None) -> str:
    """Return a figure in four significant digits, or a dash."""
    return "-" if value is None else f"{value:.4g}"


def case_line(case: CaseSummary, width: int) -> str:
    """Return the line of one case."""
    status = click.style(f"{case.status:<18}", fg=COLOURS.get(case.status, "red"))
    edge = case.edges.get(VERDICT_EDGE)
    if edge is None:
        return f"{case.label:<{width}}  {status}  {case.reason}"
    figures = (
        f"{edge.mismatches:>6}/{edge.active_tokens:<6} max {number(edge.max_abs):<9} "
        f"mean {number(edge.mean_abs):<9} rms {number(edge.rms):<9}"
    )
    note = " (resumed)" if case.resumed else ""
    return f"{case.label:<{width}}  {status}  {case.assessment:<22}  {figures}{note}"


def show_run(summary: RunSummary) -> None:
    """Print the table of a run."""
    width = max([len(case.label) for case in summary.cases] or [8])
    click.echo(f"{'case':<{width}}  {'status':<18}  {'assessment':<22}  mismatches/tokens, |d| in nats")
    for case in summary.cases:
        click.echo(case_line(case, width))
    threshold = next((case.threshold for case in summary.cases if case.threshold is not None), None)
    judged = f"; baseline threshold {number(threshold)}" if threshold is not None else ""
    click.echo(
        f"\n{summary.experiment_id}: rollout {summary.runtimes['rollout']}, training {summary.runtimes['training']}; "
        f"contract {summary.contract.version} ({summary.contract.digest[:12]}){judged}; exit {summary.exit_code}"
    )


def show_edges(comparison: Comparison) -> None:
    """Print every edge of one comparison."""
    if comparison.unattested:
        click.echo(f"  not attested by the file: {', '.join(comparison.unattested)}")
    for name, edge in comparison.edges.items():
        click.echo(
            f"  {name}: {edge.active_tokens} tokens, {edge.mismatches} over {number(edge.threshold)}, "
            f"max {number(edge.max_abs)}, mean {number(edge.mean_abs)}, bias {number(edge.bias)}, "
            f"k3 {number(edge.approx_kl0)}"
        )
        for worst in edge.worst[:3]:
            click.echo(
                f"    sequence {worst.sequence} position {worst.position} token {worst.token_id}: "
                f"{worst.first:.6f} - {worst.second:.6f} = {worst.difference:+.6f}"
            )

"""The printed form of a run summary: one line per case, the verdict first."""

from __future__ import annotations

from collections.abc import Sequence

import click

from xcfg.schema.names import LAUNCH_STATUSES
from xcfg.schema.result import Comparison, EdgeResult
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
        return f"{case.label:<{width}}  {status}  {case.reason.partition(chr(10))[0]}{_kept(case)}"
    over = "-" if case.threshold is None else f"{edge.mismatches}/{edge.active_tokens} > {number(case.threshold)}"
    figures = f"{over:<18} max {number(edge.max_abs):<9} mean {number(edge.mean_abs):<9} rms {number(edge.rms):<9}"
    note = " (resumed)" if case.resumed else ""
    return f"{case.label:<{width}}  {status}  {case.assessment:<22}  {figures}{note}"


def _kept(case: CaseSummary) -> str:
    """Return where the logs of a failed case lie, relative to the experiment's folder."""
    failed = case.status in {status.value for status in LAUNCH_STATUSES} and case.attempt_id
    return f"; logs: cases/{case.case_id}/{case.attempt_id}/" if failed else ""


def show_run(summary: RunSummary) -> None:
    """Print the table of a run."""
    width = max([len(case.label) for case in summary.cases] or [8])
    click.echo(f"{'case':<{width}}  {'status':<18}  {'assessment':<22}  tokens over threshold; |d| in nats")
    for case in summary.cases:
        click.echo(case_line(case, width))
    for reason in dict.fromkeys(case.assessment_reason for case in summary.cases if case.assessment_reason):
        click.echo(f"  assessment: {reason}")
    for case in summary.cases:
        for arm, reason in sorted(case.missing_arms.items()):
            click.echo(f"  {case.label}: no edges of {arm}: {reason.partition(chr(10))[0]}")
    click.echo(
        f"\n{summary.experiment_id}: rollout {summary.runtimes['rollout']}, training {summary.runtimes['training']}; "
        f"contract {summary.contract.version} ({summary.contract.digest[:12]}); exit {summary.exit_code}"
    )


def _over(edge: EdgeResult) -> str:
    return "not judged" if edge.threshold is None else f"{edge.mismatches} over {number(edge.threshold)}"


def show_edges(comparison: Comparison, names: Sequence[str]) -> None:
    """Print every edge of one comparison; names: what the dump calls its sequences."""
    if comparison.reason:
        click.echo(f"  {comparison.reason}")
    if comparison.unattested:
        click.echo(f"  not attested by the file: {', '.join(comparison.unattested)}")
    for name, edge in comparison.edges.items():
        click.echo(
            f"  {name}: {edge.active_tokens} tokens, {_over(edge)}, "
            f"max {number(edge.max_abs)}, mean {number(edge.mean_abs)}, bias {number(edge.bias)}, "
            f"k3 {number(edge.approx_kl0)}"
        )
        for worst in edge.worst[:3]:
            click.echo(
                f"    {names[worst.sequence]!r} position {worst.position} token {worst.token_id}: "
                f"{worst.first:.6f} - {worst.second:.6f} = {worst.difference:+.6f}"
            )

"""The printed form of a run summary: one line per case, the verdict first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from xcfg.schema.names import LAUNCH_STATUSES
from xcfg.schema.result import BUDGET_PAGE, Comparison, EdgeResult
from xcfg.schema.summary import CaseSummary, RunSummary

VERDICT_EDGE = "training_vs_rollout"
RECORDED_EDGES = ("decode_vs_recorded", "training_vs_recorded")
FAR = 3.0
"""Recorded values this many times further from the scores than the sides are from each other are worth a line."""
RATIOS = ("r_training", "r_rollout", "r_gap")
LAST_LINES = 6
COLOURS = {"PASS": "green", "MISMATCH": "yellow"}


def number(value: float | None) -> str:
    """Return a figure in four significant digits, or a dash."""
    return "-" if value is None else f"{value:.4g}"


def case_line(case: CaseSummary, width: int, home: Path | None = None) -> str:
    """Return the line of one case. home: the experiment's folder, where logs lie."""
    status = click.style(f"{case.status:<18}", fg=COLOURS.get(case.status, "red"))
    edge = case.edges.get(VERDICT_EDGE)
    if edge is None:
        return f"{case.label:<{width}}  {status}  {case.reason.partition(chr(10))[0]}{_kept(case, home)}"
    judged = case.threshold is not None and edge.max_abs is not None  # without a number there is nothing to count
    over = f"{edge.mismatches}/{edge.active_tokens} > {number(case.threshold)}" if judged else "-"
    figures = f"{over:<18} max {number(edge.max_abs):<9} mean {number(edge.mean_abs):<9} rms {number(edge.rms):<9}"
    note = " (resumed)" if case.resumed else ""
    return f"{case.label:<{width}}  {status}  {case.assessment:<22}  {figures}{note}"


def _kept(case: CaseSummary, home: Path | None) -> str:
    """Return where the logs of a failed case lie."""
    failed = case.status in {status.value for status in LAUNCH_STATUSES} and case.attempt_id
    return f"; logs: {(home or Path()) / 'cases' / case.case_id / case.attempt_id}/" if failed else ""


def _assessed(cases: Sequence[CaseSummary]) -> Iterator[str]:
    """Yield why an assessment is what it is, once for all cases of which the same holds, and name the first of them."""
    told: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        if case.assessment_reason:
            told.setdefault((case.assessment, case.assessment_reason), []).append(case.label)
    for (assessment, reason), labels in told.items():
        others = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        yield f"  {labels[0]}{others}: {assessment}: {reason}"
    if any(name in reason for _, reason in told for name in RATIOS):
        yield f"  r: error of a side, or of the gap, over its rounding budget; {BUDGET_PAGE}"


def _gradients(cases: Sequence[CaseSummary]) -> Iterator[str]:
    """Yield how far a gradient lies from float64's where a score looked at one; once for all cases with the same."""
    told: dict[str, list[str]] = {}
    for case in cases:
        for arm, item in sorted(case.gradients.items()):
            broken = f", {item.broken_rows} of them not finite" if item.broken_rows else ""
            said = (
                f"gradient of {arm}: max {number(item.max_abs)}, rel. L2 {number(item.rel_l2)} from float64's "
                f"over {item.rows} rows{broken} ({item.options()})"
            )
            told.setdefault(said, []).append(case.label)
    for said, labels in told.items():
        others = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        yield f"  {labels[0]}{others}: {said}"


def _last_words(cases: Sequence[CaseSummary]) -> Iterator[str]:
    """Yield what a failed worker said last, once for all cases that it failed."""
    told: dict[str, str] = {}
    for case in cases:
        lines = [line for line in case.reason.splitlines()[1:] if line.strip()]
        if lines and not case.edges:
            told.setdefault("\n".join(f"    {line}" for line in lines[-LAST_LINES:]), case.label)
    for words, label in told.items():
        yield f"  {label}: the worker's last lines\n{words}"


def _recorded(cases: Sequence[CaseSummary]) -> Iterator[str]:
    """Yield how far the first case's scores lie from the values recorded in the rollout, where that is far."""
    for case in cases:
        verdict = case.edges.get(VERDICT_EDGE)
        name = next((name for name in RECORDED_EDGES if name in case.edges), "")
        if verdict is None or verdict.mean_abs is None or not name or case.threshold is None:
            continue
        edge = case.edges[name]
        far = (edge.mean_abs or 0.0) > FAR * verdict.mean_abs and (edge.max_abs or 0.0) > case.threshold
        if far:
            yield (
                f"  {case.label}: {name.partition('_vs_')[0]} lies mean {number(edge.mean_abs)}, max "
                f"{number(edge.max_abs)} nats from the values recorded in the rollout, and the two sides only mean "
                f"{number(verdict.mean_abs)} from each other:\n    the recording used another checkpoint, or this "
                "experiment does not reproduce what made it drift"
            )
        return


def show_run(summary: RunSummary, output_root: Path | None = None) -> None:
    """Print the table of a run. output_root: the folder under which it was stored."""
    home = None if output_root is None else output_root / summary.experiment_id
    width = max([len(case.label) for case in summary.cases] or [8])
    click.echo(f"{'case':<{width}}  {'status':<18}  {'assessment':<22}  tokens over threshold; |d| in nats")
    for case in summary.cases:
        click.echo(case_line(case, width, home))
    for line in _assessed(summary.cases):
        click.echo(line)
    for case in summary.cases:
        for arm, reason in sorted(case.missing_arms.items()):
            click.echo(f"  {case.label}: no edges of {arm}: {reason.partition(chr(10))[0]}")
    for line in (*_gradients(summary.cases), *_last_words(summary.cases), *_recorded(summary.cases)):
        click.echo(line)
    click.echo(
        f"\n{summary.experiment_id}: rollout {summary.runtimes['rollout']}, training {summary.runtimes['training']}; "
        f"contract {summary.contract.version} ({summary.contract.digest[:12]}); exit {summary.exit_code}"
    )


def nats(value: float, sign: str = "") -> str:
    """Return a log probability in nats with six decimals; in scientific form where that would fill the line."""
    return f"{value:{sign}.6f}" if abs(value) < 1e6 else f"{value:{sign}.6g}"


def _over(edge: EdgeResult) -> str:
    if edge.max_abs is None:
        return "no figures"
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
                f"{nats(worst.first)} - {nats(worst.second)} = {nats(worst.difference, '+')}"
            )

"""`xcfg gate RUN`: parse, call, print."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from xcfg_analysis.options import common_options, emit, run_options

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@run_options
@click.option(
    "--after", "ended", type=FILE, metavar="FILE", help="What `xcfg run --json` printed: RUN has to be what it left."
)
@click.option("--baseline", type=FILE, metavar="FILE", help="Hold the run against this baseline, figure by figure.")
@click.option("--write-baseline", "new_baseline", type=FILE, metavar="FILE", help="Write the baseline of this run.")
@click.option(
    "--corridor-percent",
    "percent",
    type=click.FloatRange(0.0, 100.0),
    metavar="P",
    help="With --write-baseline: half the corridor in percent, instead of the spread over sequences.",
)
@click.option("--junit", type=FILE, metavar="FILE", help="Write JUnit XML: one test per case, a suite per slice.")
@click.option(
    "--summary", type=FILE, metavar="FILE", help="Write Markdown; $GITHUB_STEP_SUMMARY is appended to anyway."
)
@click.option("--metrics", type=FILE, metavar="FILE", help="Write a flat JSON object of figures.")
@click.option(
    "--track",
    "trackers",
    multiple=True,
    metavar="NAME[=PLACE]",
    help="Hand the metrics to wandb=PROJECT, tensorboard=FOLDER or mlflow=URI; may be given several times.",
)
@click.option(
    "--step", type=click.IntRange(0), default=0, show_default=True, help="The step under which they are kept."
)
@click.option("--downstream", type=FILE, metavar="FILE", help="Series of training (.jsonl, .csv) for the rules.")
@common_options
@click.pass_context
def gate(context: click.Context, /, run: Path, **given: Any) -> None:
    """Give one exit code for the finished RUN (runs/EXPERIMENT), and write what build servers and trackers read."""
    from xcfg_analysis.gate.gate import Outputs, gate_run
    from xcfg_analysis.gate.summary import text

    if given["percent"] is not None and not math.isfinite(given["percent"]):
        raise click.UsageError(f"--corridor-percent {given['percent']} is no number of percent; give 0 to 100")
    if given["percent"] is not None and given["new_baseline"] is None:
        raise click.UsageError("--corridor-percent is for --write-baseline; a baseline that exists has its corridors")
    session: Any = context.obj
    outputs = Outputs(**{name: given.pop(name) for name in ("junit", "summary", "metrics", "trackers", "step")})
    report = gate_run(run, outputs, plugins=session.manager, **given)
    wrote = "" if given["new_baseline"] is None or not report.cases else f"\nwrote the baseline {given['new_baseline']}"
    emit(context, report, lambda: text(report) + wrote)
    context.exit(report.exit_code)

"""`xcfg run FILE`: plan, score both sides, judge, seal."""

from __future__ import annotations

from pathlib import Path

import click

from xcfg.cli._numbers import FiniteRange
from xcfg.cli._output import Session, common_options, emit, pass_session
from xcfg.cli._progress import Progress
from xcfg.cli._run_table import show_run
from xcfg.cli._select import selection_of, selection_options
from xcfg.cli._signals import end_as_interrupted
from xcfg.errors import UsageError
from xcfg.schema.worker import OPTIONAL_COLUMNS


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--runtime", metavar="NAME", help="The runtime of both sides.")
@click.option("--rollout", metavar="NAME", help="The runtime of the rollout side (default torch).")
@click.option("--training", metavar="NAME", help="The runtime of the training side (default torch).")
@click.option("--rollout-devices", default="cpu", metavar="LIST", help="e.g. cpu or cuda:0,cuda:1")
@click.option("--training-devices", default="cpu", metavar="LIST", help="e.g. cpu or cuda:0,cuda:1")
@click.option("--output-root", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option("--timeout-seconds", type=FiniteRange(1), help="Limit per engine build and per score request.")
@click.option("--columns", default="", metavar="LIST", help=f"Optional score columns: {', '.join(OPTIONAL_COLUMNS)}.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Engines alive at once.")
@click.option(
    "--memory-gib",
    type=FiniteRange(0, open_=True),
    help="Memory of all engines at most; one always runs, unless its runtime reckons that it cannot fit.",
)
@click.option("--no-resume", is_flag=True, help="Score and judge again what is already sealed.")
@click.option("--allow-smoke-operators", is_flag=True, help="Let temporary smoke operators run (cpu-smoke only).")
@selection_options
@common_options
@pass_session
def run(session: Session, file: Path, memory_gib: float | None, **given: object) -> None:
    """Run the experiment in FILE and print one line per case. Run it again to go on where it stopped."""
    from xcfg.flow.options import RunOptions
    from xcfg.flow.run import run as run_journey

    rollout, training = _runtimes(given)
    seconds = given["timeout_seconds"]
    limits = {} if seconds is None else {"build_timeout": seconds, "score_timeout": seconds}
    progress = Progress(enabled=not session.json)
    options = RunOptions(
        rollout=rollout,
        training=training,
        rollout_devices=_list(given["rollout_devices"]),
        training_devices=_list(given["training_devices"]),
        output_root=given["output_root"],  # type: ignore[arg-type]
        resume=not given["no_resume"],
        allow_smoke=bool(given["allow_smoke_operators"]),
        columns=_columns(given["columns"]),
        max_workers=given["workers"],  # type: ignore[arg-type]
        memory_budget=None if memory_gib is None else int(memory_gib * 2**30),
        selection=selection_of(given),
        on_event=progress,
        **limits,  # type: ignore[arg-type]
    )
    end_as_interrupted()
    summary = run_journey(file, session.manager, options)
    progress.close()
    emit(session, summary, lambda shown: show_run(shown, options.output_root))
    raise SystemExit(summary.exit_code)


def _runtimes(given: dict[str, object]) -> tuple[str, str]:
    both = given["runtime"]
    if both and (given["rollout"] or given["training"]):
        raise UsageError("--runtime names both sides", hint="Give --runtime, or --rollout and --training.")
    return str(given["rollout"] or both or "torch"), str(given["training"] or both or "torch")


def _list(text: object) -> tuple[str, ...]:
    return tuple(part.strip() for part in str(text).split(",") if part.strip())


def _columns(text: object) -> tuple[str, ...]:
    names = _list(text)
    for name in names:
        if name not in OPTIONAL_COLUMNS:
            raise UsageError(f"unknown score column {name!r}", hint=f"Available: {', '.join(OPTIONAL_COLUMNS)}.")
    return names

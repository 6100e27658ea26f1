"""`xcfg analyze FILE [FILE]` and `xcfg analyze RUN`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import xcfg
from xcfg.errors import UsageError

from xcfg_analysis.options import common_options, emit

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE [FILE]")
@click.option(
    "--format", "reader", metavar="NAME", help="The dump reader to use instead of the one that recognises FILE."
)
@click.option("--train-format", "train_reader", metavar="NAME", help="The same for the second FILE.")
@click.option("--redact", is_flag=True, help="Replace sample and token ids by salted hashes, and name no file.")
@click.option("--runtimes", default="", metavar="ROLLOUT/TRAINING", help="Of a run that several pairs of runtimes ran.")
@click.option(
    "--downstream", type=FILE, metavar="FILE", help="Of a run: series of training (.jsonl, .csv) for the rules."
)
@click.option(
    "--next", "following", type=FILE, metavar="FILE", help="Of a run: write the experiment to run next to FILE."
)
@common_options
@click.pass_context
def analyze(
    context: click.Context,
    files: tuple[Path, ...],
    reader: str | None,
    train_reader: str | None,
    redact: bool,
    runtimes: str,
    downstream: Path | None,
    following: Path | None,
) -> None:
    """Say what makes the sides drift: of a run (runs/<experiment>), or of a dump.

    A dump is one FILE with both sides, or two, rollout and training: the fault that it shows is named. Of a run: which
    knob opens the gap, with its interval, which knobs do not, and what to do next; the analysis is kept in the run.
    """
    session: Any = context.obj
    if len(files) == 1 and (xcfg.is_run(files[0]) or _holds_runs(files[0])):
        given = {"--format": reader, "--train-format": train_reader, "--redact": redact or None}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"{', '.join(wrong)} belongs to dumps, {str(files[0])!r} is a run", hint="Leave it out.")
        from xcfg_analysis.page.journey import analyze_folder
        from xcfg_analysis.page.text import text as page

        found, not_kept = analyze_folder(
            files[0], plugins=session.manager, runtimes=runtimes, downstream=downstream, following=following
        )
        if not_kept:
            click.echo(f"the analysis was not kept: {not_kept}", err=True)
        wrote = "" if following is None else f"\n\nwrote {following}"
        emit(context, found, lambda: page(found) + wrote)
    else:
        from xcfg_analysis.analyze import analyze_dump
        from xcfg_analysis.show import text

        if len(files) > 2:
            raise click.UsageError(f"{len(files)} files were given; a dump is one file, or one per side")
        asked = {"--runtimes": runtimes, "--downstream": downstream, "--next": following}
        if wrong := [name for name, value in asked.items() if value]:
            raise UsageError(f"{', '.join(wrong)} belongs to runs, these are dumps", hint="Leave it out.")
        found = analyze_dump(files, plugins=session.manager, reader=reader, train_reader=train_reader, redacted=redact)
        emit(context, found, lambda: text(found))
    context.exit(found.exit_code)


def _holds_runs(path: Path) -> bool:
    """Whether `path` is the folder of all runs and no run, which is named in place of one of them."""
    try:
        return any(xcfg.is_run(item) for item in path.iterdir())
    except OSError:
        return False

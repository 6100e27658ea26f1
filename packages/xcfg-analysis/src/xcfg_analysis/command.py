"""`xcfg analyze FILE [FILE]`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from xcfg.schema import codec


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE [FILE]")
@click.option(
    "--format", "reader", metavar="NAME", help="The dump reader to use instead of the one that recognises FILE."
)
@click.option("--train-format", "train_reader", metavar="NAME", help="The same for the second FILE.")
@click.option("--redact", is_flag=True, help="Replace sample and token ids by salted hashes, and name no file.")
@click.option("--json", "_json", is_flag=True, expose_value=False, help="Print one JSON document.")
@click.option("--debug", "_debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.option(
    "--no-plugin",
    "_no_plugin",
    multiple=True,
    metavar="NAME",
    expose_value=False,
    help="Leave out a plugin; may be given several times.",
)
@click.pass_context
def analyze(
    context: click.Context, files: tuple[Path, ...], reader: str | None, train_reader: str | None, redact: bool
) -> None:
    """Name the fault behind the drift in a dump: one FILE with both sides, or two, rollout and training."""
    from xcfg_analysis.analyze import analyze_dump
    from xcfg_analysis.show import text

    if len(files) > 2:
        raise click.UsageError(f"{len(files)} files were given; a dump is one file, or one per side")
    session: Any = context.obj
    found = analyze_dump(files, plugins=session.manager, reader=reader, train_reader=train_reader, redacted=redact)
    session.emitted = True
    if session.json:
        click.echo(codec.pretty_json(found), nl=False)
    else:
        click.echo(text(found))
    context.exit(found.exit_code)

"""The options that every command of this package takes, as those of core do; the session in `context.obj` has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from xcfg.schema import codec

F = TypeVar("F", bound=Callable[..., Any])


def common_options(command: F) -> F:
    """Add `--json`, `--debug` and `--no-plugin`; the session has read them before the command was looked up."""
    command = click.option(
        "--no-plugin",
        "_no_plugin",
        multiple=True,
        metavar="NAME",
        expose_value=False,
        help="Leave out a plugin; may be given several times.",
    )(command)
    command = click.option(
        "--debug", "_debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
    )(command)
    return click.option("--json", "_json", is_flag=True, expose_value=False, help="Print one JSON document.")(command)


def run_options(command: F) -> F:
    """Add RUN and `--runtimes`."""
    command = click.option(
        "--runtimes",
        default="",
        metavar="ROLLOUT/TRAINING",
        help="The pair of runtimes, where several ran the experiment (default: the one that ran the baseline last).",
    )(command)
    return click.argument("run", type=click.Path(path_type=Path), metavar="RUN")(command)


def emit(context: click.Context, document: Any, human: Callable[[], str]) -> None:
    """Print `document` under `--json`, else what `human` returns."""
    session: Any = context.obj
    session.emitted = True
    if session.json:
        click.echo(codec.pretty_json(document), nl=False)
    else:
        click.echo(human())

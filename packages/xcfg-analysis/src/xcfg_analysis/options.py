"""The arguments of commands that read a run, and how every command of this package prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import xcfg

F = TypeVar("F", bound=Callable[..., Any])


def common_options(command: F) -> F:
    """Add what every command of xcfg takes."""
    return cast("F", xcfg.common_options(command))


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
    xcfg.emit(context.obj, document, lambda _: human())

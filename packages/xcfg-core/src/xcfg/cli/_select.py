"""The options by which plan, run and others choose cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from xcfg.flow.inputs import Selection

F = TypeVar("F", bound=Callable[..., Any])


def selection_options(command: F) -> F:
    """Add --filter, --slice, --axis and --profile."""
    for option in (
        click.option(
            "--filter",
            "filter_",
            metavar="EXPR",
            help="Keep cases that match, e.g. 'rollout.dtype==float32'.",
        ),
        click.option("--slice", "slice_", metavar="NAME", help="Keep the cases of a slice named in the file."),
        click.option("--axis", "axes", metavar="PATH", multiple=True, help="Keep cases that vary only these paths."),
        click.option("--profile", metavar="NAME", help="Use a named preset over the planner."),
    ):
        command = option(command)
    return command


def selection_of(given: Mapping[str, Any]) -> Selection:
    """Return the selection that the options name."""
    return Selection(
        filter=given["filter_"], slice=given["slice_"], axes=tuple(given["axes"]), profile=given["profile"]
    )

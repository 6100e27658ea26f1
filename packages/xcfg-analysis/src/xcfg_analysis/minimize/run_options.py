"""The options of `xcfg run` that a search takes as well, and the lines that it prints meanwhile.

Not the selections: a search chooses its cases itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from xcfg.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def run_options(command: F) -> F:
    """Add them; the names and defaults are those of `xcfg run`."""
    for option in reversed(
        (
            click.option("--runtime", metavar="NAME", help="The runtime of both sides."),
            click.option("--rollout", metavar="NAME", help="The runtime of the rollout side (default torch)."),
            click.option("--training", metavar="NAME", help="The runtime of the training side (default torch)."),
            click.option("--rollout-devices", default="cpu", metavar="LIST", help="e.g. cpu or cuda:0,cuda:1"),
            click.option("--training-devices", default="cpu", metavar="LIST", help="e.g. cpu or cuda:0,cuda:1"),
            click.option("--output-root", type=click.Path(path_type=Path), default=Path("runs"), show_default=True),
            click.option(
                "--timeout-seconds", type=click.FloatRange(1), help="Limit per engine build and per score request."
            ),
            click.option(
                "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Engines alive at once."
            ),
            click.option(
                "--memory-gib", type=click.FloatRange(0, min_open=True), help="Memory of all engines at most."
            ),
            click.option("--no-resume", is_flag=True, help="Score and judge again what older runs have sealed."),
            click.option(
                "--allow-smoke-operators", is_flag=True, help="Let temporary smoke operators run (cpu-smoke only)."
            ),
            click.option(
                "--runtimes", "pair", metavar="ROLLOUT/TRAINING", help="For a folder that several pairs ran: which one."
            ),
        )
    ):
        command = option(command)
    return command


def to_run(given: Mapping[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Return the keywords of `xcfg.probing`. Raises UsageError."""
    both = given["runtime"]
    if both and (given["rollout"] or given["training"]):
        raise UsageError("--runtime names both sides", hint="Give --runtime, or --rollout and --training.")
    if given["pair"]:
        raise UsageError("--runtimes chooses among what a folder holds", hint="Give --rollout and --training to score.")
    options: dict[str, Any] = {
        "rollout": given["rollout"] or both or "torch",
        "training": given["training"] or both or "torch",
        "rollout_devices": _list(given["rollout_devices"]),
        "training_devices": _list(given["training_devices"]),
        "output_root": given["output_root"],
        "resume": not given["no_resume"],
        "allow_smoke": given["allow_smoke_operators"],
        "max_workers": given["workers"],
        "on_event": Lines(quiet=quiet),
    }
    for name in ("timeout_seconds", "memory_gib"):
        if given[name] is not None and not math.isfinite(given[name]):
            raise UsageError(f"--{name.replace('_', '-')} has to be finite")
    if given["timeout_seconds"] is not None:
        options |= {"build_timeout": given["timeout_seconds"], "score_timeout": given["timeout_seconds"]}
    if given["memory_gib"] is not None:
        options["memory_budget"] = int(given["memory_gib"] * 2**30)
    return options


class Lines:
    """Prints what a run reports, one line each, on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        """Print nothing but that another run is at work when quiet."""
        self.quiet = quiet
        self.started = time.monotonic()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Print one event."""
        kind = event["event"]
        if self.quiet and kind != "busy":
            return
        elapsed = f"[{time.monotonic() - self.started:6.1f}s]"
        if kind == "score":
            click.echo(f"{elapsed} scoring {event['number']}/{event['total']}: {event['label']}", err=True)
        elif kind == "case" and not event["summary"].resumed:
            click.echo(f"{elapsed} {event['summary'].label}: {event['summary'].status}", err=True)
        elif kind in ("rescored", "no_reference", "failed", "busy", "taken", "rejected"):
            click.echo(f"{elapsed} {event.get('label', event.get('path', ''))}: {event['reason']}", err=True)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())

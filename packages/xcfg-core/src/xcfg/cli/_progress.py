"""Progress on stderr: a line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

import click

from xcfg.cli._run_table import case_line
from xcfg.flow.options import Event


class Progress:
    """Receives the events of a run and prints them."""

    def __init__(self, *, enabled: bool) -> None:
        """Write nothing when not enabled."""
        self.enabled = enabled
        self.terminal = sys.stderr.isatty()
        self.started = time.monotonic()
        self.ended = 0

    def __call__(self, event: Event) -> None:
        """Print one event."""
        if not self.enabled and event["event"] != "busy":  # a document on stdout is no reason to keep that silent
            return
        elapsed = time.monotonic() - self.started
        if event["event"] == "score":
            self._line(f"[{elapsed:6.1f}s] scoring {event['number']}/{event['total']}: {event['label']}")
        elif event["event"] == "case":
            self.ended += 1
            text = case_line(event["summary"], len(event["summary"].label))
            self._keep(f"[{elapsed:6.1f}s] {self.ended}/{event['total']} {text}")
        elif event["event"] in ("rescored", "no_reference", "failed", "busy", "taken"):
            self._keep(f"[{elapsed:6.1f}s] {event['label']}: {event['reason']}")
        elif event["event"] == "rejected":
            self._keep(f"[{elapsed:6.1f}s] ignored {event['path']}: {event['reason']}")

    def _line(self, text: str) -> None:
        if self.terminal:
            click.echo(f"\r\x1b[2K{text[:160]}", err=True, nl=False)
        else:
            click.echo(text, err=True)

    def _keep(self, text: str) -> None:
        click.echo(f"\r\x1b[2K{text}" if self.terminal else text, err=True)

    def close(self) -> None:
        """Leave the terminal on a fresh line."""
        if self.enabled and self.terminal:
            click.echo("\r\x1b[2K", err=True, nl=False)

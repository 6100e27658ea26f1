"""Signals that end a long command as Ctrl-C does."""

from __future__ import annotations

import signal


def end_as_interrupted() -> None:
    """Let TERM and HUP raise KeyboardInterrupt, so that workers go and nothing half-written stays.

    A scheduler's time limit sends TERM, a closed terminal HUP; nohup ignores HUP, and so do we then.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.default_int_handler)

"""Execution errors that carry what a person needs to look at: the log files, the rank, its own words.

They are the classes of `xcfg.errors` (catch those); the supervisor raises these subclasses of them.
"""

from __future__ import annotations

from pathlib import Path

from xcfg.errors import ExecutionError, LaunchError, MissingRankError, ScoreTimeoutError, WorkerError

TAIL_LINES = 15
_TAIL_BYTES = 16384


class WorkerFault(ExecutionError):
    """What all four share.

    logs: name -> log file of each rank. rank: the failing one, if it is known. error_kind: `unsupported`,
    `identity`, `out_of_memory`, `engine`, … as the rank said, or `exit`, `timeout`, `protocol`. traceback:
    the rank's. worker_usable: the worker can serve the next request.
    """

    logs: dict[str, Path]
    rank: int | None
    error_kind: str
    traceback: str
    worker_usable: bool


class BuildFault(WorkerFault, LaunchError):
    """The engine did not come up."""

    kind = LaunchError.kind


class ScoreFault(WorkerFault, WorkerError):
    """The worker ended or reported an error while it scored."""

    kind = WorkerError.kind


class TimeoutFault(WorkerFault, ScoreTimeoutError):
    """A build or a score took longer than its limit."""

    kind = ScoreTimeoutError.kind


class RankFault(WorkerFault, MissingRankError):
    """A rank is missing or reported twice."""

    kind = MissingRankError.kind


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, or an empty string."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(line[:400] for line in text.splitlines()[-lines:])


def make_fault(
    kind: type[WorkerFault],
    message: str,
    *,
    logs: dict[str, Path],
    rank: int | None = None,
    hint: str = "",
    error_kind: str = "protocol",
    traceback: str = "",
    worker_usable: bool = False,
) -> WorkerFault:
    """Return an error whose hint ends with the last lines of the failing rank's log; the caller keeps the file."""
    log = logs.get(f"worker-{rank}.log") or next(iter(logs.values()), None)
    parts = [hint] if hint else []
    if log is not None:
        last = tail(log)
        parts.append(f"Last lines of {log.name}:\n{last}" if last else f"{log.name} is empty.")
    error = kind(message, hint="\n  ".join(parts))
    error.logs, error.rank, error.error_kind = dict(logs), rank, error_kind
    error.traceback, error.worker_usable = traceback, worker_usable
    return error

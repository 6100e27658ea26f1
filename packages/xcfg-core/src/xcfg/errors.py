"""Every error that xcfg raises on purpose, as one tree.

    XcfgError                      exit  kind
    ├── UsageError                  2    usage
    │   ├── ConfigError             2    config             an experiment file; carries file and JSON path
    │   ├── UnknownNameError        2    unknown_name       a knob, operator, runtime, case that nobody provides
    │   ├── MissingDependencyError  2    missing_dependency a package that has to be installed
    │   └── PluginError             2    plugin             a plugin that the experiment names and that is not active
    ├── NotComparableError          3    not_comparable
    │   ├── IdentityError           3    identity
    │   ├── ArtifactError           3    artifact           a stored file that is missing, malformed or altered
    │   └── NothingSelectedError    3    nothing_selected
    ├── ExecutionError              4    execution
    │   ├── LaunchError             4    launch
    │   ├── ScoreTimeoutError       4    timeout
    │   ├── WorkerError             4    worker
    │   └── MissingRankError        4    missing_rank
    └── InterruptedRunError       130    interrupted

A message says what happened and which name (`!r`), the hint says what was available and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class XcfgError(Exception):
    """Root of the tree; never raised itself."""

    kind = "error"
    exit_code = 4

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep the message (what, which) and the hint (what was available, what to do)."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message, and the hint on a line of its own."""
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(XcfgError):
    """The command or what it was given is wrong."""

    kind = "usage"
    exit_code = 2


class ConfigError(UsageError):
    """An input file is not what its schema asks for."""

    kind = "config"

    def __init__(self, message: str, *, source: str = "", path: str = "", hint: str = "") -> None:
        """Keep the file (`source`) and the JSON path (`$.baseline.batch`) of the fault."""
        where = ": ".join(part for part in (source, path) if part)
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.source = source
        self.path = path


class UnknownNameError(UsageError):
    """A name that no active plugin provides."""

    kind = "unknown_name"


class MissingDependencyError(UsageError):
    """Something has to be installed first; the hint is the command."""

    kind = "missing_dependency"


class PluginError(UsageError):
    """A plugin that is needed by name cannot be used."""

    kind = "plugin"


class NotComparableError(XcfgError):
    """The two sides cannot be compared, so there is no number."""

    kind = "not_comparable"
    exit_code = 3


class IdentityError(NotComparableError):
    """The sides did not score the same logical input."""

    kind = "identity"


class ArtifactError(NotComparableError):
    """A stored file is missing, malformed or was altered."""

    kind = "artifact"


class NothingSelectedError(NotComparableError):
    """The filter, slice or profile left no case."""

    kind = "nothing_selected"


class ExecutionError(XcfgError):
    """A worker could not be made to produce a score."""

    kind = "execution"
    exit_code = 4


class LaunchError(ExecutionError):
    """A worker or its engine did not start."""

    kind = "launch"


class ScoreTimeoutError(ExecutionError):
    """A build or a score took longer than its limit."""

    kind = "timeout"


class WorkerError(ExecutionError):
    """A worker ended or reported an error while it scored."""

    kind = "worker"


class MissingRankError(ExecutionError):
    """A rank is missing, or reported twice."""

    kind = "missing_rank"


class InterruptedRunError(XcfgError):
    """The person pressed Ctrl-C; what was finished is kept."""

    kind = "interrupted"
    exit_code = 130


def did_you_mean(name: str, available: Iterable[str], *, limit: int = 3) -> str:
    """Return `Did you mean 'a' or 'b'?`, or the list of what there is; empty when there is nothing.

    Near is what is spelled alike, or else what ends in `.name`.
    """
    names = sorted(set(available))
    close = difflib.get_close_matches(name, names, n=limit, cutoff=0.6)
    close = close or [item for item in names if item.endswith(f".{name}")][:limit]
    if close:
        return "Did you mean " + " or ".join(repr(item) for item in close) + "?"
    if not names:
        return ""
    shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return f"Available: {shown}."

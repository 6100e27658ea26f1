"""Refusals that end a case as UNSUPPORTED: the engine cannot do what was asked, and nothing is broken."""

from __future__ import annotations

from xcfg.errors import LaunchError, WorkerError


class UnsupportedBuildError(LaunchError):
    """Megatron-core cannot be built as asked."""

    error_kind = "unsupported"


class UnsupportedRequestError(WorkerError):
    """The engine cannot do what the request asks."""

    error_kind = "unsupported"

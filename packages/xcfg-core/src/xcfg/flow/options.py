"""What a person may choose when a plan is run; nothing here changes what counts as equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xcfg.errors import UsageError
from xcfg.flow.inputs import Selection
from xcfg.schema.codec import is_unicode

Event = dict[str, Any]


def ignore(_: Event) -> None:
    """Drop a progress event."""


def check_root(root: Path) -> None:
    """Raise UsageError where the path is no UTF-8: requests and records name files below it, and are JSON."""
    if not is_unicode(str(root)):
        raise UsageError(
            f"the output root {str(root)!r} is not valid UTF-8",
            hint="Name another folder (--output-root): documents name what lies in it.",
        )


@dataclass(frozen=True)
class RunOptions:
    """Runtimes, devices, places and limits of one run.

    build_timeout, score_timeout: seconds per engine build and per score request.
    memory_budget: resident bytes of all workers together at most; None: only max_workers limits them.
    columns: optional score columns to keep. on_boundary: called at every write boundary of the store.
    """

    rollout: str = "torch"
    training: str = "torch"
    rollout_devices: tuple[str, ...] = ("cpu",)
    training_devices: tuple[str, ...] = ("cpu",)
    output_root: Path = Path("runs")
    build_timeout: float = 900.0
    score_timeout: float = 3600.0
    resume: bool = True
    allow_smoke: bool = False
    columns: tuple[str, ...] = ()
    max_workers: int = 1
    memory_budget: int | None = None
    selection: Selection = field(default_factory=Selection)
    on_event: Callable[[Event], None] = ignore
    on_boundary: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for an output root that no document can name."""
        check_root(self.output_root)

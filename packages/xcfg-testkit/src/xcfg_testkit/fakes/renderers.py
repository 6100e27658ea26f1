"""A good renderer, and renderers that each break one rule."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable

from xcfg.plugin import RendererDescriptor
from xcfg.schema.summary import CaseSummary, RunSummary

Render = Callable[[RunSummary], bytes]
_CLOCK = itertools.count()


def descriptor(name: str, **fields: object) -> RendererDescriptor:
    """Return a descriptor of the fake `name` of this module."""
    values: dict[str, object] = {
        "name": "fake",
        "summary": "a fake",
        "factory": f"{__name__}:{name}",
        "suffixes": (".html",),
        "media_type": "text/html",
    }
    return RendererDescriptor(**{**values, **fields})  # type: ignore[arg-type]


def line(case: CaseSummary) -> str:
    """One case as a table row."""
    return f"<tr><td>{case.case_id}<td>{html.escape(case.label)}<td>{case.status}</tr>"


def good(run: RunSummary) -> bytes:
    """Keeps every rule."""
    return f"<h1>{html.escape(run.experiment_id)}</h1><table>{''.join(map(line, run.cases))}</table>".encode()


def text(run: RunSummary) -> str:
    """Returns text."""
    return good(run).decode()


def empty(run: RunSummary) -> bytes:
    """Returns nothing."""
    return b""


def clock(run: RunSummary) -> bytes:
    """Adds a number that is never the same."""
    return good(run) + str(next(_CLOCK)).encode()


def only_passes(run: RunSummary) -> bytes:
    """Leaves out what failed."""
    return "".join(line(case) for case in run.cases if case.status in ("PASS", "MISMATCH")).encode() or b"-"


def all_pass(run: RunSummary) -> bytes:
    """Sums up with a pass."""
    return good(run) + b"<p>PASS</p>"


def no_status(run: RunSummary) -> bytes:
    """Shows labels only."""
    return "".join(html.escape(case.label) for case in run.cases).encode() or b"-"


def unescaped(run: RunSummary) -> bytes:
    """Writes labels as they are."""
    return "".join(f"{case.label} {case.status} {case.case_id}" for case in run.cases).encode() or b"-"

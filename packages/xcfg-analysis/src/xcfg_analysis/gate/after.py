"""Whether the run that is gated is the one that has just ended: a folder that was kept from last time looks as good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xcfg.errors import ConfigError, InterruptedRunError
from xcfg.schema.codec import convert, read_strict
from xcfg.schema.gate import Finding
from xcfg.schema.summary import ERROR, RUN_SUMMARY, ErrorSummary, RunSummary

from xcfg_analysis.cube.rows import Cube
from xcfg_analysis.gate.kinds import finding

SHOWN = 3


def read_after(path: Path) -> RunSummary | ErrorSummary:
    """Return the document that `xcfg run --json` printed. Raises ConfigError when it is none."""
    document = read_strict(path)
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version == RUN_SUMMARY:
        return convert(document, RunSummary, source=str(path))
    if version == ERROR:
        return convert(document, ErrorSummary, source=str(path))
    raise ConfigError(
        f"is no document of `xcfg run --json`, but {version!r}",
        source=str(path),
        hint=f"Known: {RUN_SUMMARY}, {ERROR}.",
    )


def planned_by(ended: RunSummary | ErrorSummary | None) -> tuple[str, ...]:
    """Return the ids of the cases of the run that ended: the plan to judge, though a newer one may lie beside it."""
    return tuple(case.case_id for case in ended.cases) if isinstance(ended, RunSummary) else ()


def after(cube: Cube | None, ended: RunSummary | ErrorSummary) -> tuple[Finding, ...]:
    """Return why the cube is not what the run that ended has left; empty when every attempt is one of its."""
    if isinstance(ended, ErrorSummary):
        return (finding("run_failed", f"The run ended with {ended.kind}, exit {ended.exit_code}: {ended.message}."),)
    return tuple(_differences(cube, ended))


def _differences(cube: Cube | None, ended: RunSummary) -> Iterator[Finding]:
    if ended.exit_code == InterruptedRunError.exit_code:
        yield finding("run_failed", "The run was interrupted.")
    if cube is None:
        return
    if cube.experiment_id != ended.experiment_id:
        yield finding(
            "stale_run", f"The folder is of {cube.experiment_id!r}, the run that ended of {ended.experiment_id!r}."
        )
        return
    gated = {row.case_id: row.attempt for row in cube.rows}
    left = {case.case_id: case.attempt_id for case in ended.cases if case.attempt_id}
    names = {row.case_id: row.label for row in cube.rows} | {case.case_id: case.label for case in ended.cases}
    odd = [case for case in {**left, **gated} if gated.get(case) != left.get(case)]
    if odd:
        named = "; ".join(
            f"{names[case]} is {gated.get(case, 'absent')}, the run left {left.get(case, 'none')}"
            for case in odd[:SHOWN]
        )
        more = f"; and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        yield finding("stale_run", f"Not what the run that ended has left: {named}{more}.")

"""The journey of `xcfg analyze RUN`: open, look, keep, and write the experiment that is to be run next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xcfg.errors import UsageError, XcfgError
from xcfg.schema.analysis import Analysis

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.outputs import refuse_overwriting
from xcfg_analysis.page.analysis import look_at, store
from xcfg_analysis.page.next_file import write_next
from xcfg_analysis.rules.series_file import read_series


def analyze_folder(
    folder: Path,
    *,
    plugins: Any = None,
    runtimes: str = "",
    downstream: Path | None = None,
    following: Path | None = None,
) -> tuple[Analysis, str]:
    """Return the analysis of `runs/<experiment>`, which is kept in its store, and why it was not kept, or empty.

    downstream: a file of training series. following: where the experiment that is to be run next is written. Raises
    XcfgError; UsageError where the next step is no run of this experiment.
    """
    refuse_overwriting(folder, {"--next": following}, {"--downstream": downstream})
    series = None if downstream is None else read_series(downstream)
    evidence = Evidence.open(folder, plugins=plugins, runtimes=runtimes)
    looked = look_at(evidence, series)
    not_kept = ""
    try:
        store(evidence, looked.analysis)
    except XcfgError as error:  # somebody else's run, on a disk that takes nothing
        not_kept = error.message
    step = looked.following(Path.cwd())
    if following is not None:
        if step.changes is None:
            raise UsageError(
                f"there is nothing to write to {str(following)!r}: the next step is no run of this experiment",
                hint=f"It is: {step.step}: {step.command}",
            )
        write_next(following, evidence, step.changes)
    return looked.seen_from(Path.cwd()), not_kept

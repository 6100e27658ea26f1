"""The journey of `xcfg gate`: cube, rules, baseline, report, and the files that were asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xcfg.errors import NotComparableError, UsageError, XcfgError
from xcfg.schema.codec import pretty_json
from xcfg.schema.gate import GATE, Finding, GateReport

from xcfg_analysis.gate.after import after, planned_by, read_after
from xcfg_analysis.gate.baseline import make_baseline, read_baseline, write_baseline
from xcfg_analysis.gate.judge import judge
from xcfg_analysis.gate.kinds import worst
from xcfg_analysis.gate.metrics import metrics_of, send
from xcfg_analysis.gate.summary import markdown
from xcfg_analysis.outputs import refuse_overwriting

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True)
class Outputs:
    """Where to write. trackers: `NAME` or `NAME=PLACE`, as metrics.send takes them."""

    junit: Path | None = None
    summary: Path | None = None
    metrics: Path | None = None
    trackers: tuple[str, ...] = ()
    step: int = 0


def gate_run(
    folder: Path,
    outputs: Outputs,
    *,
    plugins: Any = None,
    baseline: Path | None = None,
    new_baseline: Path | None = None,
    percent: float | None = None,
    downstream: Path | None = None,
    ended: Path | None = None,
    runtimes: str = "",
) -> GateReport:
    """Return the report of `runs/<experiment>` after every file was written. Raises XcfgError (exit 2) for usage.

    ended: the document that `xcfg run --json` printed; the run has to be the one that it tells of.
    A run that cannot be read at all, or holds no number, still gives a report and a JUnit file that say so. The new
    baseline is written last, and only from a run whose every case was measured.
    """
    from xcfg_analysis.cube.load import load_cube
    from xcfg_analysis.rules.conclude import conclude
    from xcfg_analysis.rules.series_file import read_series

    if baseline is not None and new_baseline is not None and baseline.absolute() == new_baseline.absolute():
        raise UsageError(
            f"{str(baseline)!r} cannot be held against and replaced in one call",
            hint="Write the new baseline beside it, look at both, then replace it.",
        )
    refuse_overwriting(
        folder,
        {
            "--write-baseline": new_baseline,
            "--junit": outputs.junit,
            "--summary": outputs.summary,
            "--metrics": outputs.metrics,
        },
        {"--baseline": baseline, "--after": ended, "--downstream": downstream},
    )
    held = None if baseline is None else read_baseline(baseline)
    series = None if downstream is None else read_series(downstream)
    told = None if ended is None else read_after(ended)
    cube = None
    try:
        cube = load_cube(folder, plugins=plugins, runtimes=runtimes, cases=planned_by(told))
    except UsageError as error:  # what a build server keeps from last time would be as green as it was
        _write(_unreadable(folder, error, ()), replace(outputs, trackers=()))
        raise
    except XcfgError as error:
        before = () if told is None else after(None, told)
        report = _unreadable(folder, error, before)
    else:
        name = "" if baseline is None else str(baseline)
        knobs = plugins.knobs() if plugins is not None else None
        before = () if told is None else after(cube, told)
        report = judge(cube, held, name=name, rules=conclude(cube, series), knobs=knobs, before=before)
    _write(report, outputs)
    if new_baseline is not None and before:
        raise NotComparableError(
            "no baseline was written: " + " ".join(item.text for item in before), hint="Write it from a run that ended."
        )
    if new_baseline is not None and cube is not None:
        write_baseline(new_baseline, make_baseline(cube, percent))
    return report


def _unreadable(folder: Path, error: XcfgError, before: tuple[Finding, ...]) -> GateReport:
    text = " ".join(part for part in (error.message, error.hint) if part)
    found = (*before, Finding(kind=error.kind, text=text, exit_code=error.exit_code))
    return GateReport(
        schema_version=GATE,
        experiment_id=folder.absolute().name,
        exit_code=error.exit_code if isinstance(error, UsageError) else worst({item.exit_code for item in found}),
        baseline="",
        contract={},
        cases=(),
        findings=found,
    )


def _write(report: GateReport, outputs: Outputs) -> None:
    if outputs.junit is not None:
        from xcfg_analysis.gate.junit import junit_xml

        _put(outputs.junit, junit_xml(report))
    if outputs.summary is not None:
        _put(outputs.summary, markdown(report).encode())
    if step_summary := os.environ.get(STEP_SUMMARY):
        try:
            with Path(step_summary).open("a", encoding="utf-8") as stream:
                stream.write(markdown(report) + "\n")
        except OSError as error:
            raise UsageError(
                f"{step_summary!r} cannot be appended to: {error.strerror}",
                hint=f"${STEP_SUMMARY} names it; unset it where there is no such file.",
            ) from None
    metrics = metrics_of(report)
    if outputs.metrics is not None:
        _put(outputs.metrics, pretty_json(metrics))
    for target in outputs.trackers:
        send(metrics, target, step=outputs.step)


def _put(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from None

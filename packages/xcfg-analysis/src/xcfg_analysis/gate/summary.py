"""The report as Markdown, for the step summary of a build server, and as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from xcfg.schema.gate import GateCase, GateReport

from xcfg_analysis.gate.judge import missing_finding

MEANING = {
    0: "open",
    1: "closed: a number is not what it has to be",
    2: "closed: there is no run to judge",
    3: "closed: something was not measured",
    4: "closed: an engine failed",
}
COLUMNS = ("max_abs", "mean_abs", "rms", "mismatch_ratio")


def markdown(report: GateReport) -> str:
    """Return the step summary; what a file wrote cannot break the table."""
    lines = [f"## xcfg gate: {_cell(report.experiment_id)}", "", f"**{_verdict(report)}**", ""]
    head = ("case", "status", "assessment", "tokens", *COLUMNS, "gate")
    lines += [_row(head), _row(["---"] * len(head))]
    lines += [_row(_cells(case)) for case in report.cases]
    told = [f"`{item.kind}` {_cell(item.text)}" for item in report.findings]
    told += [f"`missing_case` {_cell(missing_finding(label).text)}" for label in report.missing]
    told += [
        f"{_cell(case.label)}: `{item.kind}` {_cell(item.text)}" for case in report.cases for item in case.findings
    ]
    if told:
        lines += ["", "### Why it is closed", "", *(f"- {line}" for line in told)]
    if report.conclusions:
        lines += ["", "### What the rules say", "", *(f"- {_cell(line)}" for line in report.conclusions)]
    return "\n".join(lines) + "\n"


def text(report: GateReport) -> str:
    """Return the report for a terminal: the verdict, then one line per finding."""
    return "\n".join([*_lines(report), f"{report.experiment_id}: {_verdict(report)}"])


def _lines(report: GateReport) -> Iterator[str]:
    for item in report.findings:
        yield f"run: {item.kind}: {item.text}"
    for label in report.missing:
        yield f"{label}: missing_case: {missing_finding(label).text}"
    for case in report.cases:
        for item in case.findings:
            yield f"{case.label}: {item.kind}: {item.text}"
    yield from report.conclusions


def _verdict(report: GateReport) -> str:
    closed = sum(bool(case.findings) for case in report.cases) + len(report.missing)
    held = f", held against {report.baseline}" if report.baseline else ""
    count = f"{closed} of {len(report.cases) + len(report.missing)} cases closed"
    return f"gate {MEANING[report.exit_code]} (exit {report.exit_code}; {count}{held})"


def _cells(case: GateCase) -> list[str]:
    figures = [f"{case.figures[name]:.4g}" if name in case.figures else "-" for name in COLUMNS]
    gate = ", ".join(f"`{item.kind}`" for item in case.findings) or (
        "as baseline" if case.judged_by == "baseline" else "ok"
    )
    return [_cell(case.label), case.status, case.assessment or "-", str(case.active_tokens), *figures, gate]


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(content: str) -> str:
    """Return text that stays one line and one cell, and starts neither HTML nor a link."""
    line = " ".join(content.split())
    for char in "\\`|<>[]*_":
        line = line.replace(char, f"\\{char}" if char not in "<>" else {"<": "&lt;", ">": "&gt;"}[char])
    return line

"""JUnit XML: one test per case, a suite per slice; a failure is a number, an error is what was not measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from xcfg.schema.gate import Finding, GateCase, GateReport

from xcfg_analysis.gate.judge import missing_finding
from xcfg_analysis.gate.slices import suites_of

RUN = "run"
NUMBER = 1
"""Exit code of a finding that is a number; every other is an error of the test."""
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(report: GateReport) -> bytes:
    """Return the report as JUnit XML, UTF-8. A case that belongs to several slices is a test in each of them."""
    from junitparser import JUnitXml, TestSuite

    document = JUnitXml(_clean(report.experiment_id))
    for suite_name, tests in _suites(report):
        suite = TestSuite(_clean(suite_name))
        suite.add_property(
            "contract", _clean(f"{report.contract.get('version', '')} {report.contract.get('digest', '')}")
        )
        suite.add_property("baseline", _clean(report.baseline or "none"))
        for name, case, findings in tests:
            suite.add_testcase(_test(report, suite_name, name, case, findings))
        document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    text: bytes = document.tostring()  # type: ignore[no-untyped-call]
    return text


Test = tuple[str, GateCase | None, tuple[Finding, ...]]


def _suites(report: GateReport) -> Iterator[tuple[str, list[Test]]]:
    """Yield the run as a whole, which is a test too, then every suite in the order of its first case."""
    whole: list[Test] = [(RUN, None, report.findings)]
    whole += [(label, None, (missing_finding(label),)) for label in report.missing]
    yield RUN, whole
    suites: dict[str, list[Test]] = {}
    for case in report.cases:
        for name in suites_of(case.role, case.slices):
            suites.setdefault(name, []).append((case.label, case, case.findings))
    yield from suites.items()


def _test(report: GateReport, suite: str, name: str, case: GateCase | None, findings: tuple[Finding, ...]) -> Any:
    from junitparser import Error, Failure, TestCase

    test = TestCase(
        _clean(name), classname=_clean(f"{report.experiment_id}.{suite}"), time=0.0 if case is None else case.seconds
    )
    results: list[Any] = []
    for item in findings:
        result = (Failure if item.exit_code == NUMBER else Error)(_clean(item.text), item.kind)
        result.text = _clean(f"{item.kind}: {item.text}")
        results.append(result)
    if results:
        test.result = results
    if case is not None:
        test.system_out = _clean(describe(case))
    return test


def describe(case: GateCase) -> str:
    """Return the case in a few lines: status, assessment, figures, and the corridor where there is one."""
    lines = [
        f"{case.case_id}",
        f"status {case.status}, assessment {case.assessment or 'none'}, by the {case.judged_by}",
    ]
    lines.append(f"active_tokens {case.active_tokens}")
    for name, value in case.figures.items():
        held = case.corridor.get(name)
        lines.append(f"{name} {value:.6g}" + ("" if held is None else f" in [{held.low:.6g}, {held.high:.6g}]"))
    return "\n".join(lines)


def _clean(text: str) -> str:
    """Return `text` without characters that no XML document may hold."""
    return _NO_XML.sub("\ufffd", text)

"""Run a file of contract subclasses in an inner pytest and look at each test's outcome."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy  # noqa: F401 - before the inner run, which forgets modules that it was first to import
import pytest
import torch  # noqa: F401
import xcfg_testkit
import xcfg_testkit.fakes.knobs
import xcfg_testkit.fakes.operators
import xcfg_testkit.fakes.readers
import xcfg_testkit.fakes.renderers
import xcfg_testkit.fakes.runtimes  # noqa: F401

Outcomes = dict[str, dict[str, set[str]]]


class Keep:
    """Of some classes, run only the tests of one name: a bad fake need not fail slowly everywhere."""

    def __init__(self, tests: dict[str, str], modules: dict[str, ModuleType]) -> None:
        self.tests, self.modules = tests, modules

    def pytest_unconfigure(self) -> None:
        """Note what is loaded."""
        self.modules.update({name: item for name, item in sys.modules.items() if name.startswith(("torch", "numpy"))})

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Drop the others."""
        items[:] = [item for item in items if self.wanted(*item.nodeid.split("::")[-2:])]

    def wanted(self, owner: str, test: str) -> bool:
        """Whether a test stays."""
        return self.tests.get(owner, test.partition("[")[0]) == test.partition("[")[0]


@pytest.fixture(autouse=True)
def kept_modules() -> Iterator[dict[str, ModuleType]]:
    """Modules that an inner run imported. pytester forgets them, and torch refuses to import parts of itself twice.

    Automatic, so that it is set up before pytester and torn down after it.
    """
    modules: dict[str, ModuleType] = {}
    yield modules
    for name, module in modules.items():
        sys.modules.setdefault(name, module)


@pytest.fixture
def reports(pytester: pytest.Pytester, kept_modules: dict[str, ModuleType]) -> Callable[..., list[pytest.TestReport]]:
    """Run a source in an inner pytest and return its reports."""

    def run(source: str, only: dict[str, str] | None = None) -> list[pytest.TestReport]:
        pytester.makepyfile(test_inner="from __future__ import annotations\n" + source)
        keep = Keep(only or {}, kept_modules)
        record = pytester.inline_run("-p", "no:cacheprovider", "--strict-markers", "--tb=no", "-q", plugins=[keep])
        return record.getreports("pytest_runtest_logreport")

    return run


@pytest.fixture
def outcomes(reports: Callable[..., list[pytest.TestReport]]) -> Callable[..., Outcomes]:
    """class -> test, without parameters -> its outcomes; a failing setup or teardown is `failed`."""

    def run(source: str, only: dict[str, str] | None = None) -> Outcomes:
        found: Outcomes = defaultdict(lambda: defaultdict(set))
        for report in reports(source, only):
            _, owner, test = report.nodeid.split("::")[:3]
            if report.when == "call" or report.outcome != "passed":
                found[owner][test.partition("[")[0]].add(report.outcome)
        return found

    return run


@pytest.fixture
def failed() -> Callable[[dict[str, set[str]]], set[str]]:
    """The names of the tests of one class of which at least one run failed."""
    return lambda tests: {name for name, found in tests.items() if "failed" in found}

"""Exit codes and errors: what a script in CI can rely on."""

from __future__ import annotations

import itertools
import re

import pytest
from xcfg import errors
from xcfg.errors import ConfigError, XcfgError, did_you_mean
from xcfg.schema.names import LAUNCH_STATUSES, Status, exit_code

CODES = {
    "PASS": 0,
    "MISMATCH": 1,
    "NOT_COMPARABLE": 3,
    "CONTROL_FAILED": 3,
    "INVALID_IDENTITY": 3,
    "INVALID_ARTIFACT": 3,
    "ZERO_ACTIVE_TOKENS": 3,
    "EMPTY_JOIN": 3,
    "UNSUPPORTED": 3,
    "FALLBACK": 3,
    "UNOBSERVABLE": 3,
    "LAUNCH_FAILED": 4,
    "TIMEOUT": 4,
    "WORKER_FAILED": 4,
    "MISSING_RANK": 4,
    "CANCELLED": 3,
}


def test_the_table_has_every_status():
    assert set(CODES) == {status.value for status in Status}
    assert {status.value for status in LAUNCH_STATUSES} == {name for name, code in CODES.items() if code == 4}


def test_one_case_ends_with_its_code():
    assert {status.value: exit_code([status]) for status in Status} == CODES


def test_every_set_of_statuses_ends_with_its_gravest_code():
    statuses = list(Status)
    for size in range(len(statuses) + 1):
        for chosen in itertools.combinations(statuses, size):
            present = {CODES[status.value] for status in chosen}
            expected = next((code for code in (4, 3, 1, 0) if code in present), 3)
            assert exit_code(list(chosen)) == expected, chosen


@pytest.mark.parametrize(
    "order", list(itertools.permutations([Status.PASS, Status.MISMATCH, Status.TIMEOUT, Status.FALLBACK]))
)
def test_the_order_of_the_cases_does_not_matter(order):
    assert exit_code(list(order)) == 4


def test_an_interrupted_run_says_so_whatever_it_found():
    for statuses in ([], [Status.PASS], [Status.WORKER_FAILED, Status.MISMATCH]):
        assert exit_code(statuses, interrupted=True) == 130


def test_nothing_selected_is_no_pass():
    assert exit_code([]) == 3


def test_only_passes_pass():
    passing = [status for status in Status if exit_code([Status.PASS, status]) == 0]
    assert passing == [Status.PASS]


def test_the_tree_of_errors_is_the_one_that_is_written_down():
    lines = re.findall(r"^[ │├└─]*(\w+Error)\s+(\d+)\s+(\w+)", errors.__doc__ or "", flags=re.MULTILINE)
    written = {name: (int(code), kind) for name, code, kind in lines}
    found = {
        name: (value.exit_code, value.kind)
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, XcfgError) and value is not XcfgError
    }
    assert {name: fact for name, fact in written.items() if name != "XcfgError"} == found
    kinds = [kind for _, kind in found.values()]
    assert len(set(kinds)) == len(kinds)


def test_a_message_and_its_hint():
    error = errors.UsageError("what happened", hint="what to do")
    assert (error.message, error.hint) == ("what happened", "what to do")
    assert str(error) == "what happened\n  what to do"
    assert str(errors.UsageError("what happened")) == "what happened"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({"source": "f.json", "path": "$.a"}, "f.json: $.a: no"),
        ({"source": "f.json"}, "f.json: no"),
        ({"path": "$.a"}, "$.a: no"),
        ({}, "no"),
    ],
)
def test_a_config_error_says_where(place, text):
    error = ConfigError("no", **place)
    assert error.message == text
    assert (error.source, error.path) == (place.get("source", ""), place.get("path", ""))


def test_a_wrong_name_is_answered_with_what_is_near_or_with_what_there_is():
    assert did_you_mean("batch.sise", ["batch.size", "rollout.dtype"]) == "Did you mean 'batch.size'?"
    assert did_you_mean("ab1", ["ab2", "ab3"]) in ("Did you mean 'ab2' or 'ab3'?", "Did you mean 'ab3' or 'ab2'?")
    assert did_you_mean("dtype", ["batch.size", "rollout.dtype"]) == "Did you mean 'rollout.dtype'?"
    assert did_you_mean("zzz", ["b", "a", "a"]) == "Available: a, b."
    assert did_you_mean("zzz", []) == ""
    many = [f"name-{index:02d}" for index in range(20)]
    assert did_you_mean("?", many) == f"Available: {', '.join(many[:12])}, … (20 in all)."
    assert len(re.findall("name", did_you_mean("name-0", many))) == 3

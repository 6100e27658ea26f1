"""Limits that a person types: NaN is below and above nothing, so every bound has to name it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("option", ["--timeout-seconds", "--memory-gib"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1", "1e300", "x"])
def test_a_limit_that_limits_nothing_is_refused(call, option, value):
    code, _, error = call("run", "nowhere.json", option, value)
    assert code == 2
    assert option in error


@pytest.mark.parametrize("option", ["--timeout-seconds", "--memory-gib"])
def test_a_limit_is_taken(call, option):
    code, _, error = call("run", "nowhere.json", option, "1.5")
    assert code == 2
    assert "nowhere.json" in error, "what is refused is the file and not the limit"

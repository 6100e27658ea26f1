from __future__ import annotations

import copy

import pytest
from xcfg.config.scan import POLICY_KEYS, TOLERANCE_KEYS
from xcfg.errors import ConfigError


def objects(node, path=()):
    """Every object of a document, as the keys that lead to it."""
    if isinstance(node, dict):
        yield path
        for key, value in node.items():
            yield from objects(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from objects(value, (*path, index))


def at(document, path):
    for step in path:
        document = document[step]
    return document


@pytest.fixture
def full(v2):
    return v2 | {
        "scenario": {"level": "S0", "deep": [{"list": [{}]}]},
        "operators": {"attention": {"rollout": {"backend": "x", "options": {"inner": {}}}}},
        "runtime_options": {"rollout": {"hf_overrides": {"rope": {}}}, "training": {}},
        "slices": {"ci": {"batch.size": [8]}},
        "constraints": [{"code": "C", "when": {"batch.size": [3]}}],
        "controls": {},
        "limits": {},
        "fixed": {"rollout": {"enforce_eager": True}},
    }


@pytest.mark.parametrize("key", [*sorted(TOLERANCE_KEYS), "ATOL", "Fixed-Threshold", "a.rtol"])
def test_a_tolerance_is_refused_at_every_place(key, full, parse):
    places = list(objects(full))
    assert len(places) > 15
    for place in places:
        document = copy.deepcopy(full)
        at(document, place)[key] = 1e-3
        with pytest.raises(ConfigError, match="not allowed anywhere") as error:
            parse(document)
        assert error.value.path.endswith(key)
        assert "contract" in error.value.hint


@pytest.mark.parametrize("key", [*sorted(POLICY_KEYS), "expected_status", "expected_", "Expected_outcome"])
def test_policy_is_refused_at_the_top_and_in_the_whole_scenario(key, full, parse):
    places = [(), *(place for place in objects(full) if place[:1] == ("scenario",))]
    assert len(places) == 4
    for place in places:
        document = copy.deepcopy(full)
        at(document, place)[key] = True
        with pytest.raises(ConfigError, match="not allowed") as error:
            parse(document)
        assert "command line" in error.value.hint


def test_engine_arguments_may_use_those_words(full, parse):
    full["runtime_options"]["rollout"]["execution"] = "eager"
    assert parse(full).runtime_options["rollout"]["execution"] == "eager"


@pytest.mark.parametrize("value", [2**53, -(2**53), "\ud800", float("nan"), float("inf"), (1,), b"x", {1: 2}])
def test_what_json_cannot_carry_exactly_is_refused(value, full, parse):
    full["scenario"]["x"] = value
    with pytest.raises(ConfigError):
        parse(full)
    full["scenario"]["x"] = [value]
    with pytest.raises(ConfigError):
        parse(full)


def test_the_largest_exact_integer_is_kept(full, parse):
    full["scenario"]["x"] = [2**53 - 1, -(2**53) + 1]
    assert parse(full).scenario["x"] == [2**53 - 1, -(2**53) + 1]


def test_deep_nesting_is_refused_without_recursion_trouble(full, parse):
    deep: dict = {}
    for _ in range(5000):
        deep = {"x": deep}
    for place in ("scenario", "runtime_options", "baseline"):
        with pytest.raises(ConfigError, match="deeply"):
            parse(full | {place: deep})

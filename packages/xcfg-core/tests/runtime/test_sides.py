"""What each side is asked for: a knob that reaches the wrong side, or none, would be measured as no effect."""

from __future__ import annotations

import pytest
from xcfg.runtime.sides import request_knobs, side_knobs, unsupported
from xcfg.schema.runtime import Capability, RuntimeDescriptor


@pytest.fixture
def definitions(knob):
    return {
        "r": knob("r", targets="rollout", lifecycle="engine-construction"),
        "t": knob("t", targets="training", lifecycle="process-start"),
        "both": knob("both", targets="both"),
        "kernel": knob("kernel", targets="kernel", lifecycle="build"),
    }


@pytest.fixture
def descriptor():
    def make(*capabilities, **more):
        return RuntimeDescriptor(
            name="mini", summary="", adapter="", placement="", arms={}, capabilities=capabilities, **more
        )

    return make


def test_a_knob_goes_to_the_side_it_acts_on(definitions):
    knobs = {"r": 1, "t": 2, "both": 3, "kernel": 4}
    assert side_knobs(knobs, definitions, "rollout") == {"r": 1, "both": 3, "kernel": 4}
    assert side_knobs(knobs, definitions, "training") == {"t": 2, "both": 3, "kernel": 4}


@pytest.mark.parametrize(("side", "other"), [("rollout", "training"), ("training", "rollout")])
def test_a_one_sided_value_stands_for_the_path_on_its_side_only(side, other, definitions):
    knobs = {"both": 3, f"both@{side}": 30}
    assert side_knobs(knobs, definitions, side) == {"both": 30}
    assert side_knobs(knobs, definitions, other) == {"both": 3}


@pytest.mark.parametrize("value", [0, False, None, ""])
def test_a_one_sided_value_that_is_false_still_counts(value, definitions):
    assert side_knobs({"both": 3, "both@rollout": value}, definitions, "rollout") == {"both": value}


def test_both_sides_may_have_their_own_value(definitions):
    knobs = {"both": 3, "both@rollout": 4, "both@training": 5}
    assert side_knobs(knobs, definitions, "rollout") == {"both": 4}
    assert side_knobs(knobs, definitions, "training") == {"both": 5}


def test_no_key_with_a_side_reaches_an_engine_and_the_order_does_not_depend_on_the_file(definitions):
    knobs = {"kernel": 4, "both@rollout": 9, "both": 3, "r": 1}
    found = side_knobs(knobs, definitions, "rollout")
    assert list(found) == sorted(found)
    assert not any("@" in path for path in found)


def test_only_request_knobs_travel_with_a_request(definitions):
    assert request_knobs({"r": 1, "t": 2, "both": 3, "kernel": 4}, definitions) == {"both": 3}


def test_a_knob_that_the_runtime_does_not_name_is_unsupported(descriptor):
    reasons = unsupported(descriptor(Capability(path="a", side="rollout")), "rollout", {"a": 1, "b": 2})
    assert list(reasons) == ["b"]
    assert "'mini'" in reasons["b"] and "rollout" in reasons["b"]


def test_a_capability_of_the_other_side_does_not_help(descriptor):
    assert list(unsupported(descriptor(Capability(path="a", side="training")), "rollout", {"a": 1})) == ["a"]


def test_a_capability_without_values_takes_every_value(descriptor):
    assert unsupported(descriptor(Capability(path="a", side="rollout")), "rollout", {"a": "anything"}) == {}


@pytest.mark.parametrize(
    ("value", "ok"), [(1, True), (2, True), (3, False), (True, False), ("1", False), (1.0, False), (None, False)]
)
def test_only_the_declared_values_of_the_declared_type_are_supported(value, ok, descriptor):
    reasons = unsupported(descriptor(Capability(path="a", side="rollout", values=(1, 2))), "rollout", {"a": value})
    assert reasons == {} if ok else repr(value) in reasons["a"]


def test_a_bool_capability_is_no_integer(descriptor):
    record = descriptor(Capability(path="a", side="rollout", values=(True,)))
    assert unsupported(record, "rollout", {"a": True}) == {}
    assert list(unsupported(record, "rollout", {"a": 1})) == ["a"]


def test_an_inherent_value_is_supported_and_every_other_is_not(descriptor):
    record = descriptor(Capability(path="a", side="rollout", values=(True,), inherent=True, note="eager only"))
    assert unsupported(record, "rollout", {"a": True}) == {}
    reason = unsupported(record, "rollout", {"a": False})["a"]
    assert "inherent" in reason and "eager only" in reason


def test_a_star_takes_every_knob_on_its_side_but_keeps_what_is_declared(descriptor):
    record = descriptor(Capability(path="*", side="rollout"), Capability(path="a", side="rollout", values=(1,)))
    assert unsupported(record, "rollout", {"a": 1, "b": "x", "c": None}) == {}
    assert list(unsupported(record, "rollout", {"a": 2, "b": "x"})) == ["a"]
    assert sorted(unsupported(record, "training", {"a": 1, "b": 1})) == ["a", "b"]

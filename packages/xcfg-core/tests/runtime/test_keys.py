"""A score is reused under its key: whatever it depends on must change the key, and the difference be named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xcfg.runtime.keys import case_scoring_key, comparison_key, differences, score_facts, score_key
from xcfg.schema.codec import evolve
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.runtime import Placement

BINDING = OperatorBinding(operation="o", side="training", requested="r", backend_id="b", factory="m:f")
BASE = {
    "runtime": "mini",
    "side": "training",
    "arm": "training",
    "role": "case",
    "index": 0,
    "knobs": {"a": 1, "b": True},
    "options": {"engine": {"x": [1, 2]}},
    "bindings": {"o": BINDING},
    "checkpoint": "c" * 64,
    "rollout": "r" * 64,
    "placement": Placement(devices=("cuda:0",)),
    "columns": (),
    "environment": {"version:torch": "2.6"},
}
CHANGES = [
    ("runtime", "other", ["runtime"]),
    ("side", "rollout", ["side"]),
    ("arm", "rollout_decode", ["arm"]),
    ("role", "repeat", ["role"]),
    ("index", 1, ["index"]),
    ("knobs", {"a": 2, "b": True}, ["knobs.a"]),
    ("knobs", {"a": True, "b": True}, ["knobs.a"]),
    ("knobs", {"a": 1, "b": 1}, ["knobs.b"]),
    ("knobs", {"a": "1", "b": True}, ["knobs.a"]),
    ("knobs", {"b": True}, ["knobs.a"]),
    ("knobs", {"a": 1, "b": True, "c": None}, ["knobs.c"]),
    ("options", {"engine": {"x": [2, 1]}}, ["options.engine.x"]),
    ("options", {"engine": {"x": [True, 2]}}, ["options.engine.x"]),
    ("options", {}, ["options.engine"]),
    ("bindings", {}, ["operators.o"]),
    ("bindings", {"o": evolve(BINDING, version="2")}, ["operators.o.version"]),
    ("checkpoint", "d" * 64, ["checkpoint"]),
    ("rollout", "s" * 64, ["rollout"]),
    ("placement", Placement(devices=("cuda:0",), world_size=2), ["world_size"]),
    ("placement", Placement(devices=("cuda:0",), processes=2), ["processes"]),
    ("placement", Placement(devices=("cuda:0",), command=("torchrun",)), ["command"]),
    ("placement", Placement(devices=("cpu",)), ["devices"]),
    ("placement", Placement(devices=("cuda:0", "cpu")), ["devices"]),
    ("placement", Placement(devices=("cuda:0",), env={"NCCL_ALGO": "Ring"}), ["process_env.NCCL_ALGO"]),
    ("columns", ("entropy",), ["columns"]),
    ("environment", {"version:torch": "2.7"}, ["environment.version:torch"]),
    ("environment", {"version:torch": "2.6", "env:NCCL_ALGO": ""}, ["environment.env:NCCL_ALGO"]),
]


def test_the_key_is_40_hex_digits_of_the_facts():
    key = score_key(score_facts(**BASE))
    assert len(key) == 40 and set(key) <= set("0123456789abcdef")


@pytest.mark.parametrize(("field", "value", "named"), CHANGES)
def test_any_changed_field_changes_the_key_and_is_named(field, value, named):
    before, after = score_facts(**BASE), score_facts(**(BASE | {field: value}))
    assert score_key(before) != score_key(after)
    assert differences(before, after) == named
    assert differences(after, before) == named


def test_no_two_of_these_changes_have_one_key():
    keys = {score_key(score_facts(**(BASE | {field: value}))) for field, value, _ in CHANGES}
    assert len(keys) == len(CHANGES)


def test_every_argument_of_score_facts_is_tried():
    assert {field for field, _, _ in CHANGES} == set(BASE)


@pytest.mark.parametrize("placement", [Placement(devices=("cuda:1",)), Placement(devices=("cuda:1", "cuda:0"))])
def test_which_device_of_a_kind_says_nothing(placement):
    assert score_key(score_facts(**(BASE | {"placement": placement}))) == score_key(score_facts(**BASE))


def test_the_order_of_a_mapping_says_nothing():
    turned = BASE | {"knobs": dict(reversed(BASE["knobs"].items()))}
    assert score_key(score_facts(**turned)) == score_key(score_facts(**BASE))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, 1.0, "", "1", "a.b"]),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=6,
)
FACTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@given(FACTS, FACTS)
def test_differences_are_silent_exactly_when_the_keys_are_equal(stored, current):
    assert (differences(stored, current) == []) == (score_key(stored) == score_key(current))


def test_a_case_key_is_of_its_scores_by_arm_and_of_its_refusals():
    base = case_scoring_key({"training": "a", "rollout_prefill": "b"}, {"unsupported": {}})
    assert base == case_scoring_key({"rollout_prefill": "b", "training": "a"}, {"unsupported": {}})
    assert base != case_scoring_key({"training": "b", "rollout_prefill": "a"}, {"unsupported": {}})
    assert base != case_scoring_key({"training": "a"}, {"unsupported": {}})
    assert base != case_scoring_key({"training": "a", "rollout_prefill": "b"}, {"unsupported": {"x": "y"}})


def test_the_comparison_key_is_of_contract_comparator_and_numpy(monkeypatch):
    base = comparison_key("c")
    assert base == comparison_key("c") != comparison_key("d")
    monkeypatch.setattr("xcfg.runtime.keys.version_of", lambda name: f"another {name}")
    assert comparison_key("c") != base
    monkeypatch.undo()
    monkeypatch.setattr("xcfg.runtime.keys.package_digest", lambda *rooms: "changed")
    assert comparison_key("c") != base

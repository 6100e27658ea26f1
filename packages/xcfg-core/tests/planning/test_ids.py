from __future__ import annotations

import hashlib
import json

import msgspec
import pytest
from xcfg.planning import plan_experiment

KNOBS = {
    "batch.size": 8,
    "logp.backend": "native",
    "rollout.context_parallel_size": 1,
    "rollout.dtype": "bfloat16",
    "rollout.enable_prefix_caching": False,
    "rollout.enforce_eager": True,
    "rollout.tensor_parallel_size": 1,
    "training.attention_backend": "sdpa",
    "training.compute_dtype": "bfloat16",
    "training.sharding": "unsharded",
}
NATIVE = {"backend": "native", "options": {}}
PAYLOAD = {
    "knobs": KNOBS,
    "runtime_options": {},
    "operators": {"selected_logprob": {"rollout": NATIVE, "training": NATIVE}},
    "identity": {"rollout": "r" * 64, "checkpoint": "c" * 64, "tokenizer": "t" * 64, "sampling": "s" * 64},
    "contract": {"version": "ws1-test", "digest": "d" * 64},
    "scenario_id": "tiny",
    "scenario": {"level": "S0", "größe": [1, None, True]},
    "strict_fallback": True,
    "role": "case",
    "index": 0,
}
SCENARIO = PAYLOAD["scenario"]


def by_hand(payload):
    """RFC 8785 for what stands here: no number with a fraction, keys within the basic plane."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "case-" + hashlib.sha256(text.encode("utf-8")).hexdigest()[:20]


def test_golden_baseline(make_plan):
    case = make_plan(scenario=SCENARIO).cases[0]
    assert case.case_id == by_hand(PAYLOAD)
    assert case.case_id == "case-ece820c1bf369b97561e"


def test_golden_one_sided_operator_with_options(make_plan, vary):
    choice = {"backend": "x.y", "options": {"chunk": 4}}
    plan = make_plan(
        scenario=SCENARIO,
        strict_fallback=False,
        runtime_options={"rollout": {"max_num_seqs": 8}},
        interventions=vary(("operators.selected_logprob.rollout", [choice])),
    )
    payload = PAYLOAD | {
        "operators": {"selected_logprob": {"rollout": choice, "training": NATIVE}},
        "strict_fallback": False,
        "runtime_options": {"rollout": {"max_num_seqs": 8}},
    }
    assert plan.cases[1].case_id == by_hand(payload)
    assert plan.cases[1].case_id == "case-56ab57ef6796a6dbb90b"


def test_golden_control_with_a_one_sided_knob(make_plan):
    plan = make_plan(
        scenario=SCENARIO,
        baseline={"batch.size": 8, "batch.size@training": 2},
        controls={"repeats": 2},
    )
    payload = PAYLOAD | {"knobs": KNOBS | {"batch.size@training": 2}, "role": "repeat", "index": 2}
    assert plan.cases[2].case_id == by_hand(payload)
    assert plan.cases[2].case_id == "case-1d968003071b7a54d1ce"


def ids(plan):
    return {case.case_id for case in plan.cases}


def test_what_is_not_in_an_id(make_plan, vary, load, digests, knobs):
    two = vary(("batch.size", [1]), ("rollout.dtype", ["float32"]))
    plan = make_plan(interventions=two)
    assert ids(make_plan(interventions=two, experiment_id="other")) == ids(plan)
    assert ids(make_plan(interventions=two, strategy="product")) > ids(plan)
    assert ids(make_plan(interventions=two, slices={"ci": {"batch.size": [8]}})) == ids(plan)
    assert ids(make_plan(interventions=two, limits={"max_cases": 300}, requires=["x"])) == ids(plan)
    assert ids(make_plan("v1", interventions=two)) == ids(plan)
    fewer = {
        name: knob for name, knob in knobs.items() if name.startswith(("batch.", "rollout.", "training.", "logp."))
    }
    assert ids(plan_experiment(load(interventions=two), fewer, digests)) == ids(plan)
    moved = msgspec.structs.replace(load(interventions=two), base_dir="/elsewhere", source="/elsewhere/f.json")
    assert ids(plan_experiment(moved, knobs, digests)) == ids(plan)


CHANGES = [
    {"scenario_id": "other"},
    {"scenario": {"level": "S1"}},
    {"strict_fallback": False},
    {"runtime_options": {"training": {"seed": 1}}},
    {"operators": {"gemm": {"rollout": "native"}}},
    {"baseline": {"batch.size": 4}},
    {"baseline": {"gemm.kernel": "native"}},
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_in_an_id(change, make_plan):
    assert make_plan(**change).cases[0].case_id != make_plan().cases[0].case_id


@pytest.mark.parametrize("field", ["rollout", "checkpoint", "tokenizer", "sampling"])
def test_each_identity_digest_is_in_an_id(field, make_plan, load, knobs, digests):
    other = msgspec.structs.replace(digests, **{field: "0" * 64})
    assert plan_experiment(load(), knobs, other).cases[0].case_id != make_plan().cases[0].case_id


@pytest.mark.parametrize("field", ["version", "digest"])
def test_the_resolved_contract_is_in_an_id(field, make_plan, load, knobs, digests):
    experiment = load()
    contract = msgspec.structs.replace(experiment.contract, **{field: "0"})
    changed = msgspec.structs.replace(experiment, contract=contract)
    assert plan_experiment(changed, knobs, digests).cases[0].case_id != make_plan().cases[0].case_id


def test_growing_a_grid_keeps_the_ids_of_equal_cases(make_plan, vary):
    small = make_plan(interventions=vary(("batch.size", [1])))
    grown = make_plan(strategy="product", interventions=vary(("batch.size", [2, 1]), ("rollout.dtype", ["float32"])))
    assert ids(small) < ids(grown)

from __future__ import annotations

import copy
import json
import math
import random
import time

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xcfg.config import parse_experiment
from xcfg.config.scan import POLICY_KEYS, TOLERANCE_KEYS
from xcfg.errors import ConfigError, XcfgError
from xcfg.planning import plan_experiment
from xcfg.planning.isolation import changes
from xcfg.schema.codec import canonical_json, convert, plain
from xcfg.schema.plan import ExperimentCase, ExperimentPlan

QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
LEVELS = {
    "batch.size": [1, 2, 4],
    "batch.size@rollout": [1, 3],
    "rollout.dtype": ["float32", "fp16"],
    "training.compute_dtype": ["float32"],
    "rollout.enforce_eager": [False],
    "gemm.kernel": ["tree"],
    "operators.gemm.training": ["tree", {"backend": "x", "options": {"n": 1}}],
    "logp.backend": ["reference"],
    "logp.backend@training": ["y"],
}


@st.composite
def interventions(draw, max_axes=4):
    keys = draw(st.lists(st.sampled_from(sorted(LEVELS)), min_size=1, max_size=max_axes, unique=True))
    result = []
    for key in keys:
        path, _, side = key.partition("@")
        levels = st.sampled_from(LEVELS[key])
        values = draw(st.lists(levels, min_size=1, max_size=3))
        result.append({"path": path, "values": values} | ({"side": side} if side else {}))
    return result


def shuffled(node, rng):
    """The same document, the members of every object in another order."""
    if isinstance(node, dict):
        items = [(key, shuffled(value, rng)) for key, value in node.items()]
        rng.shuffle(items)
        return dict(items)
    return [shuffled(value, rng) for value in node] if isinstance(node, list) else node


FULL = {
    "scenario": {"level": "S1", "more": {"b": 1, "a": [{"y": 1, "x": 2}]}},
    "fixed": {"rollout.enable_prefix_caching": True},
    "align": [{"path": "rollout.dtype", "to": "reference"}],
    "constraints": [{"code": "C", "when": {"batch.size": [4], "rollout.dtype": ["fp32"]}, "reason": "r"}],
    "controls": {"repeats": 1, "warm": 1},
    "runtime_options": {"rollout": {"a": 1, "b": {"c": 2}}, "training": {"x": True}},
}


@QUICK
@given(
    interventions(),
    st.sampled_from(["one_at_a_time", "product", "pairwise"]),
    st.randoms(use_true_random=False),
)
def test_key_order_never_matters(make_document, knobs, digests, varied, strategy, rng):
    document = make_document(interventions=varied, strategy=strategy, limits={"max_cases": 4096}, **FULL)
    first = parse_experiment(document, source="e", base_dir=".")
    second = parse_experiment(shuffled(document, rng), source="e", base_dir=".")
    one, two = (plan_experiment(experiment, knobs, digests) for experiment in (first, second))
    assert canonical_json(one) == canonical_json(two)


@QUICK
@given(interventions())
def test_a_single_change_differs_in_one_declared_path(make_plan, varied):
    plan = make_plan(interventions=varied)
    baseline = plan.cases[0]
    assert baseline.delta == {}
    for case in plan.cases[1:]:
        (key,) = case.delta
        path, _, side = key.partition("@")
        for change in changes(baseline, case):
            name, _, changed = change.partition("@")
            if path == "logp.backend" and name.startswith("operators.selected_logprob."):
                changed = name.rpartition(".")[2]
            else:
                assert name == path
            assert not side or not changed or changed == side
        assert case.knobs != baseline.knobs or case.operators != baseline.operators
    assert len({case.case_id for case in plan.cases}) == len(plan.cases)


@QUICK
@given(interventions(max_axes=4))
def test_the_arithmetic_of_a_product_is_its_expansion(make_plan, varied):
    changed: dict[str, set[bytes]] = {}
    for item in varied:
        key = item["path"] + ("@" + item["side"] if "side" in item else "")
        changed.setdefault(key, set()).update(canonical_json(value) for value in item["values"])
    count = math.prod(1 + len(values) for values in changed.values())
    plan = make_plan(strategy="product", limits={"max_cases": max(count, 1)}, interventions=varied)
    dropped = [issue for issue in plan.issues if issue.code in ("DUPLICATE_CELL", "ALREADY_ALIGNED")]
    assert len(plan.cases) + len(plan.filtered) + len(dropped) == count
    if count > 1:
        with pytest.raises(ConfigError, match=f"would have {count} cases"):
            make_plan(strategy="product", limits={"max_cases": count - 1}, interventions=varied)


@QUICK
@given(interventions(), st.sampled_from(["one_at_a_time", "product", "pairwise"]))
def test_a_plan_is_stored_and_read_back(make_plan, varied, strategy):
    plan = make_plan(strategy=strategy, limits={"max_cases": 4096}, interventions=varied)
    assert convert(plain(plan), ExperimentPlan) == plan
    assert all(convert(plain(case), ExperimentCase) == case for case in plan.cases)


# --- ten thousand damaged files ---------------------------------------------------------------------------

# fmt: off
JUNK = [
    None, True, False, 0, 1, -1, 8, 2**53, 10**30, 0.5, 1e308, float("nan"), float("inf"), -0.0, "", " ",
    "x", "a.b", "batch.size", "rollout.dtype", "bf16", "rollout", "training", "reference", "product", "zip",
    "pairwise", "\ud800", "\0", "operators.gemm.rollout", "x" * 3000, "é", [], {}, [[]], [None], [1, 2],
    ["batch.size", "rollout.dtype"], {"x": 1}, {"backend": "x"}, {"": {}}, {"batch": {"size": 2}},
    {"batch.size": [1]}, {"path": "batch.size"}, {"rollout": {}}, {"file": "none.json"}, {"command_line":
    "--a 1"}, {"command_line": "'"}, 4096, 256, 1.0, "1",
]
# fmt: on
SLOWEST_SECONDS = 2.0
MUTATIONS = 10_000


def full_document(make_document):
    return make_document(
        strategy="pairwise",
        interventions=[
            {"path": "batch.size", "values": [1, 2], "side": "rollout"},
            {"path": "rollout.dtype", "values": ["float32"]},
            {"path": "operators.gemm.rollout", "values": ["tree", {"backend": "x", "options": {"n": 4}}]},
        ],
        operators={"attention": {"training": {"backend": "reference", "options": {"a": [1]}}}},
        slices={"ci": {"batch.size": [8]}},
        limits={"max_cases": 64},
        requires=["xcfg-torch"],
        **(FULL | {"controls": {"repeats": 1}}),
    )


def nodes(node, found=None):
    """Every (container, key) of a document."""
    found = [] if found is None else found
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(items):
        found.append((node, key))
        nodes(value, found)
    return found


def mutate(document, rng):
    for _ in range(rng.choice((1, 1, 1, 1, 2, 4))):
        places = nodes(document)
        if not places:
            return
        container, key = rng.choice(places)
        kind = rng.randrange(7)
        if kind == 0:
            del container[key]
        elif kind == 1:
            container[key] = copy.deepcopy(rng.choice(JUNK))
        elif kind == 2 and isinstance(container, dict):
            container[
                rng.choice(["x", "", "batch.size", "rollout", "path", "a.b", "@", "batch.size@rollout", "file"])
            ] = container.pop(key)
        elif kind == 3 and isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), copy.deepcopy(container[key]))
        elif kind == 4:
            other, place = rng.choice(places)
            container[key] = copy.deepcopy(other[place]) if key in container or isinstance(container, list) else None
        elif kind == 5 and isinstance(container[key], str):
            text = container[key]
            position = rng.randrange(len(text) + 1)
            container[key] = text[:position] + rng.choice(["\n", ".", "@", "/", "é", "x", " ", '"']) + text[position:]
        else:
            container[key] = [copy.deepcopy(container[key])] * rng.choice((1, 2, 3, 30))


def outcome(document, knobs, digests, base_dir):
    """Return the plan or the XcfgError; anything else that is raised fails the test."""
    try:
        experiment = parse_experiment(document, source="e.json", base_dir=base_dir)
        return plan_experiment(experiment, knobs, digests)
    except XcfgError as error:
        return error


@pytest.mark.timeout(120)
def test_a_damaged_file_gives_a_plan_or_an_error_of_ours(make_document, knobs, digests, tmp_path):
    rng = random.Random(20261129)
    whole = full_document(make_document)
    assert isinstance(outcome(whole, knobs, digests, str(tmp_path)), ExperimentPlan)
    text = json.dumps(whole)
    plans = slowest = 0
    for number in range(MUTATIONS):
        document = json.loads(text)
        mutate(document, rng)
        started = time.process_time()
        result = outcome(document, knobs, digests, str(tmp_path))
        slowest = max(slowest, time.process_time() - started)
        if isinstance(result, XcfgError):
            assert result.exit_code == 2, number
            assert result.message, number
            assert result.hint, (number, result.message)
        else:
            plans += 1
            assert 1 <= len(result.cases) <= 4096, number
            assert result.cases[0].label == "baseline", number
            msgspec.json.encode(plain(result))
    assert slowest < SLOWEST_SECONDS
    # The damage is neither always fatal nor never: both outcomes were really tried.
    assert MUTATIONS * 0.05 < plans < MUTATIONS * 0.6


def test_no_damage_hides_a_forbidden_key(make_document, knobs, digests, tmp_path):
    rng = random.Random(7)
    whole = full_document(make_document)
    for _ in range(1_000):
        document = copy.deepcopy(whole)
        if rng.random() < 0.5:
            mutate(document, rng)
        objects = [document, *(box[key] for box, key in nodes(document) if isinstance(box[key], dict))]
        if rng.random() < 0.7:
            target, key = rng.choice(objects), rng.choice(sorted(TOLERANCE_KEYS))
        else:
            scenario = document.get("scenario")
            inner = [box[key] for box, key in nodes(scenario) if isinstance(box[key], dict)]
            boxes = [document, *([scenario] if isinstance(scenario, dict) else []), *inner]
            target, key = rng.choice(boxes), rng.choice([*sorted(POLICY_KEYS), "expected_status"])
        target[key] = rng.choice([1e-3, None, True, {}, "x"])
        result = outcome(document, knobs, digests, str(tmp_path))
        assert isinstance(result, ConfigError)

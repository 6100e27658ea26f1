"""Which worker serves which score, when a worker has to go, and the order that builds the fewest."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xcfg.errors import LaunchError, WorkerError
from xcfg.running.launch import LaunchSpec
from xcfg.running.order import order_scores
from xcfg.running.pool import WorkerPool
from xcfg.schema.codec import evolve
from xcfg.schema.runtime import Fingerprints, Placement
from xcfg.schema.worker import PROTOCOL, WorkerSpec

pytestmark = pytest.mark.timeout(60)


def pid_of(score):
    return score.builds[0].provenance["pid"]


def names(events):
    return [event["event"] for event in events]


def test_equal_launches_share_a_worker(pool, launch, request_of, events):
    first = pool.score(launch(), request_of("a"))
    second = pool.score(launch(), request_of("b"))
    assert pid_of(first) == pid_of(second) and second.reused and second.seconds["build"] == 0.0
    assert names(events) == [
        "worker_started", "worker_ready", "score_started", "score_done",
        "worker_reused", "score_started", "score_done",
    ]  # fmt: skip


@pytest.mark.parametrize("field", ["construction", "distributed", "process", "build", "bindings"])
def test_any_other_fingerprint_is_another_worker(launch, field):
    made = launch()
    other = LaunchSpec(made.spec, made.placement, evolve(made.fingerprints, **{field: "other"}))
    assert other.key != made.key


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("side", "rollout"),
        ("checkpoint", "x"),
        ("rollout", "x"),
        ("devices", ("cuda:0",)),
        ("adapter", "x:Y"),
        ("seed", 1),
    ],
)
def test_any_other_input_is_another_worker(launch, field, value):
    made = launch()
    assert LaunchSpec(evolve(made.spec, **{field: value}), made.placement, made.fingerprints).key != made.key


def test_request_knobs_and_freshness_do_not_change_the_worker(launch):
    made = launch()
    assert LaunchSpec(evolve(made.spec, knobs={"batch.size": 4}), made.placement, made.fingerprints).key == made.key
    assert launch(fresh=True).key == made.key
    assert LaunchSpec(made.spec, evolve(made.placement, env={"A": "1"}), made.fingerprints).key != made.key


def test_fresh_replaces_a_worker_that_has_served(pool, launch, request_of, is_alive):
    first = pool.score(launch(), request_of("a"))
    second = pool.score(launch(fresh=True), request_of("b"))
    assert pid_of(first) != pid_of(second) and not second.reused and not is_alive(pid_of(first))
    third = pool.score(launch(), request_of("c"))
    assert pid_of(third) == pid_of(second) and third.reused


def test_least_recently_used_goes_first(pool, launch, request_of, events):
    pids = {name: pid_of(pool.score(launch(construction=name), request_of(name))) for name in "ab"}
    pool.score(launch(construction="a"), request_of("a2"))
    pool.score(launch(construction="c"), request_of("c"))
    closed = [event for event in events if event["event"] == "worker_closed"]
    assert [event["reason"] for event in closed] == ["least recently used"] and closed[0]["worker"].startswith(
        "worker-0002"
    )
    assert pid_of(pool.score(launch(construction="a"), request_of("a3"))) == pids["a"]


def test_workers_on_one_device_are_never_alive_together(pool, launch, request_of, is_alive):
    def on(device, name):
        return launch(construction=name, placement=Placement(devices=(device,)))

    first = pid_of(pool.score(on("cuda:0", "a"), request_of("a")))
    second = pid_of(pool.score(on("cuda:1", "b"), request_of("b")))
    assert is_alive(first) and is_alive(second)
    third = pid_of(pool.score(on("cuda:0", "c"), request_of("c")))
    assert not is_alive(first) and is_alive(second) and is_alive(third)


@pytest.mark.parametrize("fault", ["raise", "exit3"])
def test_a_build_that_failed_is_not_tried_again(fault, pool, launch, request_of, events):
    """Failing means that every arm of a case that needs an engine waits anew for what cannot be built."""
    found = []
    for name, fresh in (("a", False), ("b", False), ("c", True)):
        with pytest.raises(LaunchError) as error:
            pool.score(launch({"build": fault}, construction="bad", fresh=fresh), request_of(name))
        found.append(error.value)
    assert names(events).count("worker_started") == 1
    assert {str(error) for error in found} == {str(found[0])} and all(error.logs == found[0].logs for error in found)
    assert pool.score(launch(construction="good"), request_of("d")).reports, "another launch is another engine"


def test_a_score_that_failed_is_tried_again(pool, launch, request_of, events):
    """Failing means that one request which an engine could not serve takes the engine from all others."""
    for name in "ab":
        with pytest.raises(WorkerError):
            pool.score(launch({"score": "exit3"}), request_of(name))
    assert names(events).count("worker_started") == 2


def test_memory_budget_keeps_one_worker(tmp_path, launch, request_of):
    with WorkerPool(tmp_path / "s", max_alive=4, memory_budget=1) as pool:
        for name in "abc":
            pool.score(launch(construction=name), request_of(name))
            assert pool.alive == 1


def test_memory_budget_that_is_large_enough_keeps_all(tmp_path, launch, request_of):
    with WorkerPool(tmp_path / "s", max_alive=4, memory_budget=1 << 40) as pool:
        for name in "abc":
            pool.score(launch(construction=name), request_of(name))
        assert pool.alive == 3


def test_an_observer_that_fails_stops_nothing(tmp_path, launch, request_of):
    def observer(event):
        raise RuntimeError("observer")

    with WorkerPool(tmp_path / "s", on_event=observer) as pool:
        assert pool.score(launch(), request_of()).reports


def item(side, construction, device="cpu", fresh=False):
    spec = WorkerSpec(
        protocol=PROTOCOL, runtime="r", adapter="a:b", side=side, knobs={}, options={}, operators={},
        checkpoint="", checkpoint_uri="", rollout="", world_size=1, devices=(device,),
    )  # fmt: skip
    prints = Fingerprints(construction=construction, distributed="", process="", build="", bindings="")
    return LaunchSpec(spec, Placement(devices=(device,)), prints, fresh)


def label(launch):
    return launch.spec.side[0] + launch.fingerprints.construction + ("*" if launch.fresh else "")


def order(items):
    return [label(entry) for entry in order_scores(items, lambda entry: entry)]


def test_order_keeps_equals_together_in_order_of_appearance():
    items = [
        item("training", "1"),
        item("rollout", "1"),
        item("training", "2"),
        item("rollout", "1"),
        item("training", "1"),
    ]
    assert order(items) == ["t1", "t1", "r1", "r1", "t2"]


def test_order_finishes_one_side_first_where_devices_overlap():
    items = [item(side, number, "cuda:0") for number in "12" for side in ("training", "rollout")]
    assert order(items) == ["t1", "t2", "r1", "r2"]
    apart = [item(side, number, f"cuda:{side == 'rollout':d}") for number in "12" for side in ("training", "rollout")]
    assert order(apart) == ["t1", "r1", "t2", "r2"]


def test_order_puts_fresh_processes_last_among_equals():
    items = [item("training", "1", fresh=True), item("training", "1"), item("training", "2")]
    assert order(items) == ["t1", "t1*", "t2"]


def test_what_has_to_be_last_is_last_whatever_it_costs():
    """Failing means that the baseline again at the end of a run is scored in the middle of it."""
    items = [item("training", "1"), item("rollout", "1"), item("training", "2"), item("rollout", "2")]
    end = [replace(items[0], last=True), replace(items[1], last=True)]
    assert order([*end, *items]) == ["t1", "r1", "t2", "r2", "t1", "r1"]
    crowded = [item(side, "1", "cuda:0") for side in ("training", "rollout")]
    end = replace(crowded[0], last=True)
    assert order_scores([end, *crowded], lambda entry: entry)[-1] is end


def test_order_begins_with_the_worker_that_lives():
    """Failing means that an engine of the last run is ended by the first score of this one, and built again."""
    items = [item("training", "1"), item("rollout", "1"), item("rollout", "2"), item("training", "1")]
    ordered = order_scores(items, lambda entry: entry, {items[2].key})
    assert [label(entry) for entry in ordered] == ["r2", "t1", "t1", "r1"]
    crowded = [item(side, "1", "cuda:0") for side in ("training", "rollout")]
    first, _ = order_scores(crowded, lambda entry: entry, {crowded[1].key})
    assert first.spec.side == "rollout"


def test_a_bare_device_type_overlaps_every_device():
    assert item("training", "1", "cuda").overlaps(item("rollout", "1", "cuda:3"))
    assert not item("training", "1", "cuda:0").overlaps(item("rollout", "1", "cuda:3"))
    assert not item("training", "1", "cpu").overlaps(item("rollout", "1", "cpu"))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["training", "rollout"]),
            st.sampled_from("123"),
            st.sampled_from(["cpu", "cuda:0", "cuda:1"]),
        ),
        max_size=14,
    )
)
def test_order_is_a_permutation_that_builds_each_worker_once(entries):
    items = [item(*entry) for entry in entries]
    ordered = order_scores(items, lambda entry: entry)
    assert sorted(map(id, ordered)) == sorted(map(id, items))
    runs = [key for key, _ in itertools.groupby(entry.key for entry in ordered)]
    assert len(runs) == len(set(runs)), "a worker would be built twice"

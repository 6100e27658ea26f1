"""Requested is not actual: an adapter's word is worth its evidence, and no fault is ever lost on the way."""

from __future__ import annotations

import itertools

import pytest
from xcfg.runtime.evidence import ENDS_AS, ORDER, judged, latest, verdict_of
from xcfg.schema.names import Applied, Status


def only(requested, applications, ranks=(0,), side="training"):
    (item,) = judged({"a": requested}, applications, ranks, side)
    return item


def test_a_knob_nobody_reports_is_unobservable_on_every_rank(application):
    items = judged({"b": 2, "a": 1}, [application("a", rank=1)], [0, 1], "rollout")
    assert [(item.path, item.rank, item.status.value) for item in items] == [
        ("a", 0, "unobservable"),
        ("a", 1, "applied"),
        ("b", 0, "unobservable"),
        ("b", 1, "unobservable"),
    ]
    assert all(item.side == "rollout" for item in items)
    assert items[0].actual is None and "rank 0" in items[0].reason


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("execution", "applied"),
        ("state", "applied"),
        ("inherent", "applied"),
        ("config", "unobservable"),
        (None, "unobservable"),
    ],
)
def test_only_execution_state_and_inherent_evidence_bear_a_claim(kind, status, application):
    assert only(1, [application("a", 1, kind=kind)]).status.value == status


def test_an_echo_of_the_request_is_no_evidence(application):
    echo = application("a", 8, kind="config", requested=8, materialized=8)
    item = only(8, [echo])
    assert item.status is Applied.UNOBSERVABLE
    assert "evidence" in item.reason


@pytest.mark.parametrize(
    ("requested", "actual"),
    [(1, 2), (1, True), (True, 1), (0, False), (1, 1.0), (1.0, 1), ("1", 1), (None, 0), (1, None), ("fp32", "float32")],
)
def test_another_actual_value_or_type_is_a_fallback_that_says_both(requested, actual, application):
    item = only(requested, [application("a", actual, requested=requested)])
    assert item.status is Applied.FALLBACK
    assert repr(requested) in item.reason and repr(actual) in item.reason


def test_the_operator_that_ran_is_held_to_what_the_binding_means_by_the_name(application):
    """The backend that a policy stands for is no fallback, any other one is; elsewhere materialised proves nothing."""

    def status(path, requested, materialized, actual):
        item = application(path, actual, requested=requested, materialized=materialized)
        return judged({path: requested}, [item], [0], "training")[0].status

    assert status("logp.backend", "native", "a.plain", "a.plain") is Applied.APPLIED
    assert status("logp.backend", "native", "a.plain", "a.other") is Applied.FALLBACK
    assert status("logp.backend", "a.plain", "a.plain", "a.plain") is Applied.APPLIED
    assert status("rollout.attention_backend", "model_default", "sdpa", "sdpa") is Applied.FALLBACK


def test_an_adapter_that_misstates_the_request_is_held_to_the_real_one(application):
    item = only(8, [application("a", 4, requested=4)])
    assert (item.status, item.requested) == (Applied.FALLBACK, 8)


def test_an_adapter_that_misstates_its_side_is_corrected(application):
    assert only(1, [application("a", 1, side="rollout")], side="training").side == "training"


@pytest.mark.parametrize("status", [item for item in Applied if item is not Applied.APPLIED])
def test_what_an_adapter_admits_is_kept_with_its_reason(status, application):
    item = only(1, [application("a", 1, status=status, reason="since")])
    assert (item.status, item.reason) == (status, "since")


def test_what_nobody_asked_about_is_shown_as_it_is_and_a_strange_rank_is_not(application):
    """An undeclared change must be seen; a rank outside the world says nothing about the requested knob."""
    reported = [application("z", 7, kind=None, side="rollout"), application("a"), application("a", rank=5)]
    items = judged({"a": 1}, reported, [0], "training")
    assert [(item.path, item.rank, item.side, item.actual) for item in items] == [
        ("a", 0, "training", 1),
        ("z", 0, "training", 7),
    ]


def test_what_was_read_later_replaces_what_was_read_before(application):
    items = [
        application("b", 1),
        application("a", 1, status=Applied.UNOBSERVABLE),
        application("a", 2, rank=1),
        application("a", 3),
    ]
    assert [(item.path, item.rank, item.actual) for item in latest(items)] == [("a", 0, 3), ("a", 1, 2), ("b", 0, 1)]
    assert latest([]) == ()


def test_all_applied_is_no_verdict(application, knob):
    assert verdict_of([application("a"), application("b")], {"a": knob("a")}) == (None, "")
    assert verdict_of([], {}) == (None, "")


@pytest.mark.parametrize("statuses", list(itertools.permutations(Applied, 2)))
def test_the_worse_of_two_faults_decides_whatever_their_order(statuses, application):
    items = [application(f"p{index}", status=status, reason=status.value) for index, status in enumerate(statuses)]
    worst = min(statuses, key=ORDER.index)
    status, reason = verdict_of(items, {})
    assert status is ENDS_AS[worst]
    assert worst.value in reason and f"p{statuses.index(worst)}" in reason


def test_the_order_of_faults_and_how_a_case_ends():
    assert [item.value for item in ORDER] == ["error", "unsupported", "fallback", "unobservable", "applied"]
    assert set(ORDER) == set(Applied)
    assert {key.value: value for key, value in ENDS_AS.items()} == {
        "error": Status.WORKER_FAILED,
        "unsupported": Status.UNSUPPORTED,
        "fallback": Status.FALLBACK,
        "unobservable": Status.UNOBSERVABLE,
    }


def test_a_knob_that_is_not_critical_ends_nothing_and_an_unknown_one_is_critical(application, knob):
    fault = [application("a", status=Applied.FALLBACK, reason="other kernel")]
    assert verdict_of(fault, {"a": knob("a", critical=False)}) == (None, "")
    assert verdict_of(fault, {"a": knob("a")})[0] is Status.FALLBACK
    assert verdict_of(fault, {"b": knob("b", critical=False)})[0] is Status.FALLBACK


def test_a_harmless_fault_does_not_hide_a_critical_one(application, knob):
    items = [application("a", status=Applied.ERROR), application("b", status=Applied.UNOBSERVABLE)]
    status, reason = verdict_of(items, {"a": knob("a", critical=False), "b": knob("b")})
    assert status is Status.UNOBSERVABLE
    assert reason == "b on training: unobservable"


def test_a_reason_names_every_path_of_the_worst_kind_once(application):
    items = [
        application(path, rank=rank, status=Applied.FALLBACK, reason=f"{path}{rank}")
        for path, rank in (("b", 0), ("a", 1), ("a", 0))
    ]
    assert verdict_of(items, {})[1] == "a, b on training: a0"

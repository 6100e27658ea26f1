"""Two runs on one root share the work: what the other is at comes last, what it has ended is taken over.

Failing means that the second run scores everything again, or waits.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from xcfg.artifacts.busy import OtherRun
from xcfg.flow.scores import ScoreFailure, Scorer
from xcfg.schema.names import Status


@pytest.fixture
def scorer(monkeypatch):
    """scorer(taken, sealed): a scorer that fails every score, beside a run that is at `taken`; its events."""

    def make(taken=(), sealed=None, *, reuse=True):
        events, said = [], []
        sign = SimpleNamespace(
            others=lambda: tuple(OtherRun(1, "now", key, key) for key in taken), at=lambda key, label: said.append(key)
        )
        made = Scorer(
            None,
            SimpleNamespace(keys=frozenset()),
            None,
            {},
            strict=True,
            on_event=events.append,
            reuse=reuse,
            busy=sign,
        )
        looks = []

        def stored(job):
            looks.append(job.key)
            return "found" if sealed and looks.count(job.key) > sealed.get(job.key, 9) else None

        monkeypatch.setattr(made, "stored", stored)
        monkeypatch.setattr(made, "_score", lambda job: ScoreFailure(Status.TIMEOUT, "no engine"))
        return made, events, said

    return make


def jobs(*keys):
    return [SimpleNamespace(key=key, label=f"case {key}", launch=None) for key in keys]


def scored(events):
    return [event["label"] for event in events if event["event"] == "score"]


def test_alone_the_order_is_kept(scorer):
    made, events, said = scorer()
    done = []
    made.obtain(jobs("a", "b", "c"), lambda job: done.append(job.key))
    assert done == said == ["a", "b", "c"] and scored(events) == ["case a", "case b", "case c"]
    assert [event["number"] for event in events if event["event"] == "score"] == [1, 2, 3]


def test_what_another_run_is_at_comes_last_and_is_scored_all_the_same(scorer):
    made, events, _ = scorer(taken=("a",))
    made.obtain(jobs("a", "b", "c"), lambda job: None)
    assert scored(events) == ["case b", "case c", "case a"]


def test_where_others_are_at_everything_nobody_waits(scorer):
    made, events, _ = scorer(taken=("a", "b"))
    made.obtain(jobs("a", "b"), lambda job: None)
    assert scored(events) == ["case a", "case b"]


def test_what_was_sealed_meanwhile_is_taken_over(scorer):
    made, events, _ = scorer(taken=("a",), sealed={"a": 1})  # not there at first, there at the second look
    done = []
    made.obtain(jobs("a", "b"), lambda job: done.append(job.key))
    assert scored(events) == ["case b"] and done == ["b", "a"]
    assert made.outcomes["a"] == "found"
    assert [event["label"] for event in events if event["event"] == "taken"] == ["case a"]


def test_a_forced_rescore_lets_nobody_take_its_work(scorer):
    made, events, _ = scorer(taken=("a",), reuse=False)
    made.obtain(jobs("a", "b"), lambda job: None)
    assert scored(events) == ["case a", "case b"]

"""Where a control of a cache has something to act on, and what is said where it has not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from xcfg.flow.prepare import Preparer, _keeps_cache
from xcfg.schema.runtime import RuntimeDescriptor

SWITCH = "rollout.enable_prefix_caching"


def runtime(name, cache=""):
    return RuntimeDescriptor(name=name, summary="", adapter="a:b", placement="a:b", arms={}, cache=cache)


def lacks(knobs, rollout, training):
    known = {"rollout": rollout, "training": training}
    preparer = SimpleNamespace(runtimes=SimpleNamespace(of=known.__getitem__))
    return Preparer._lacks_cache(preparer, SimpleNamespace(knobs=knobs))


@pytest.mark.parametrize(
    ("knobs", "cache", "reason"),
    [
        ({SWITCH: True}, SWITCH, ""),
        ({SWITCH: False, f"{SWITCH}@rollout": True}, SWITCH, ""),
        ({SWITCH: False}, SWITCH, f"{SWITCH} is off, so paged keeps nothing between requests"),
        (
            {SWITCH: True, f"{SWITCH}@rollout": False},
            SWITCH,
            f"{SWITCH} is off, so paged keeps nothing between requests",
        ),
        ({}, SWITCH, f"{SWITCH} is off, so paged keeps nothing between requests"),
        ({SWITCH: True}, "", "neither runtime declares a cache that outlives one request"),
    ],
)
def test_why_a_control_has_nothing_to_act_on(knobs, cache, reason):
    """Failing means a floor of a cache that is off, or a reason that sends people to the wrong switch."""
    assert lacks(knobs, runtime("paged", cache), runtime("plain")) == reason


def test_only_the_side_that_keeps_a_cache_is_asked():
    knobs = {SWITCH: True}
    assert _keeps_cache(runtime("paged", SWITCH), knobs, "rollout")
    assert not _keeps_cache(runtime("plain"), knobs, "training")

"""Where `applied` is decided: by what is there, never by what was asked for."""

from __future__ import annotations

import pytest
from xcfg.plugin.readback import Reading, application, execution, unknown
from xcfg.schema.names import Applied

EVIDENCE = (execution("calls", 3),)


@pytest.mark.parametrize(
    ("path", "requested", "materialized", "actual", "status"),
    [
        ("a.b", "eager", "eager", "eager", Applied.APPLIED),
        ("a.b", "eager", "eager", "sdpa", Applied.FALLBACK),
        ("a.b", "eager", "eager", None, Applied.UNOBSERVABLE),
        ("a.b", True, True, 1, Applied.FALLBACK),
        ("a.b", 1, 1, True, Applied.FALLBACK),
        ("a.b", "eager", "sdpa", "sdpa", Applied.FALLBACK),
        ("logp.backend", "native", "engine.own", "engine.own", Applied.APPLIED),
        ("logp.backend", "native", "engine.own", "native", Applied.FALLBACK),
    ],
)
def test_the_status_follows_from_what_is_there(path, requested, materialized, actual, status):
    """Failing means that a setting which did not run is called applied, in every adapter at once."""
    found = application(path, requested, Reading(materialized, actual, EVIDENCE), side="rollout", rank=1)
    assert (found.status, found.requested, found.actual, found.rank) == (status, requested, actual, 1)
    assert bool(found.reason) == (status is Applied.FALLBACK)


def test_a_knob_without_a_reader_is_unsupported():
    found = unknown("a.b", 3, runtime="mine", side="training", rank=0)
    assert found.status is Applied.UNSUPPORTED and found.actual is None and "'mine' does not have 'a.b'" in found.reason

"""Where an engine of one side would run."""

from __future__ import annotations

from xcfg.flow.launching import MAX_PROCESSES, place
from xcfg.schema.runtime import Placement, RuntimeDescriptor

CROWD = MAX_PROCESSES


def crowded(request):
    return Placement(world_size=CROWD, processes=CROWD)


def test_a_number_of_processes_that_no_machine_bears_is_unsupported(monkeypatch):
    descriptor = RuntimeDescriptor(
        name="r", summary="s", adapter="a:b", placement=f"{__name__}:crowded", arms={"training": ("training",)}
    )
    monkeypatch.setattr("xcfg.flow.launching.resolve", lambda *_, **__: crowded)
    assert place(descriptor, "training", {}, {}, ("cpu",)).unsupported == {}
    monkeypatch.setattr(f"{__name__}.CROWD", MAX_PROCESSES + 1)
    reasons = place(descriptor, "training", {}, {}, ("cpu",)).unsupported
    assert set(reasons) == {"processes.training"} and str(MAX_PROCESSES + 1) in reasons["processes.training"]

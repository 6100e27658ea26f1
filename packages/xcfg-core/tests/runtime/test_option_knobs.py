"""Knobs that are options of a backend: what a side is asked for, what conflicts, what a runtime cannot be asked."""

from __future__ import annotations

from types import SimpleNamespace

from xcfg.runtime.option_knobs import (
    asked_options,
    not_injected,
    option_conflicts,
    option_name,
    with_options,
    without_choice,
)
from xcfg.schema.knobs import Choice, IntRange, KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target
from xcfg.schema.operators import OperatorBackendDescriptor, OperatorChoice, OptionDefinition


def knob(name: str, domain, default, option_of: str = "thing") -> KnobDefinition:
    return KnobDefinition(
        name=name,
        summary="",
        source_class=SourceClass.REDUCTION,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=Target.BOTH,
        domain=domain,
        default=default,
        option_of=option_of,
    )


KNOBS = {
    item.name: item
    for item in (
        knob("thing.tile", IntRange(minimum=0), 0),
        knob("thing.order", Choice(values=("up", "down")), "up"),
        knob("batch.size", IntRange(minimum=1), 8, option_of=""),
        knob("other.tile", IntRange(minimum=0), 0, option_of="other"),
    )
}
TILED = OperatorBackendDescriptor(
    operation="thing",
    backend_id="a.tiled",
    summary="",
    factory="a.b:c",
    options=(OptionDefinition(name="tile", domain=IntRange(minimum=0), default=0),),
)


def test_a_default_asks_nothing_of_a_backend_without_the_option():
    """If this fails, a baseline is refused because one side runs its engine's own."""
    values = {"thing.tile": 0, "thing.order": "up", "batch.size": 8, "other.tile": 4}
    assert asked_options(values, KNOBS, "thing", TILED) == {"thing.tile": 0}
    assert asked_options(values, KNOBS, "thing", None) == {}


def test_any_other_value_is_asked_for_so_that_it_is_refused():
    """If this fails, a knob is dropped where nothing can honour it."""
    values = {"thing.tile": 2, "thing.order": "down"}
    assert asked_options(values, KNOBS, "thing", TILED) == values
    assert asked_options(values, KNOBS, "thing", None) == values


def test_options_of_the_choice_and_of_knobs_are_one():
    """If this fails, a knob silently overrides what the file says of the operator."""
    choice = OperatorChoice(backend="a.tiled", options={"tile": 4, "chunk": 1})
    assert with_options(choice, {"thing.order": "down"}).options == {"tile": 4, "chunk": 1, "order": "down"}
    assert option_conflicts(choice, {"thing.tile": 4, "thing.order": "down"}) == {}
    assert "tile=4" in option_conflicts(choice, {"thing.tile": 2})["thing.tile"]
    assert option_name("a.b.c") == "c"


def test_a_runtime_that_does_not_inject_the_operator_is_not_asked():
    """If this fails, an option reaches no engine and nobody says so."""
    runtime = SimpleNamespace(name="mine", operators=("other",))
    values = {"thing.tile": 2, "thing.order": "up", "other.tile": 3, "batch.size": 1}
    found = not_injected(values, KNOBS, runtime)
    assert set(found) == {"thing.tile"}
    assert "'mine' does not inject" in found["thing.tile"]


def test_an_option_of_an_operator_that_nothing_was_chosen_for_is_refused():
    """If this fails, a case that sets it is the baseline again, and passes without a word."""
    runtime = SimpleNamespace(name="mine", operators=("thing", "other"))
    values = {"thing.tile": 2, "thing.order": "up", "other.tile": 3, "batch.size": 1}
    found = without_choice(values, KNOBS, runtime, {"other": {}})
    assert set(found) == {"thing.tile"}
    assert "operators.thing" in found["thing.tile"]
    assert without_choice(values, KNOBS, SimpleNamespace(name="mine", operators=()), ()) == {}

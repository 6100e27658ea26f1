"""Knobs with a range of floats: one canonical spelling, so that 1 and 1.0 are one case."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xcfg.errors import ConfigError
from xcfg.planning.alignment import _from_spelling
from xcfg.planning.normalise import normalise_value
from xcfg.schema.codec import canonical_json, convert, plain
from xcfg.schema.knobs import AlignSpec, Domain, FloatRange, KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target


def knob(**bounds) -> KnobDefinition:
    return KnobDefinition(
        name="acme.scale",
        summary="A scale.",
        source_class=SourceClass.ARITHMETIC,
        lifecycle=Lifecycle.REQUEST,
        targets=Target.BOTH,
        domain=FloatRange(**bounds),
        align=AlignSpec(group="acme.scale"),
    )


@pytest.mark.parametrize("value", [0.0, 0.5, 2.0, 1, 1e-300])
def test_numbers_within_the_bounds_are_taken_as_floats(value):
    found = normalise_value(knob(minimum=0.0, maximum=2.0), value)
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize(
    "value", [True, False, "1", "", None, -1e-9, 2.0001, 3, -1, math.nan, math.inf, -math.inf, 10**400]
)
def test_everything_else_is_refused_and_the_bounds_are_named(value):
    with pytest.raises(ConfigError, match="UNSUPPORTED_VALUE") as caught:
        normalise_value(knob(minimum=0.0, maximum=2.0), value)
    assert "from 0 to 2" in caught.value.hint


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, True])
def test_a_range_without_bounds_is_still_of_finite_numbers(value):
    with pytest.raises(ConfigError, match="UNSUPPORTED_VALUE"):
        normalise_value(knob(), value)


def test_minus_zero_is_zero_as_in_a_case_id():
    found = normalise_value(knob(), -0.0)
    assert math.copysign(1.0, found) == 1.0
    assert canonical_json(-0.0) == canonical_json(found)


@given(st.integers(-(2**60), 2**60))
def test_an_int_and_its_float_have_one_spelling(value):
    found = normalise_value(knob(), value)
    assert canonical_json(found) == canonical_json(normalise_value(knob(), float(value)))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_alignment_carries_a_float_over(value):
    spec = knob()
    found = normalise_value(spec, value)
    assert _from_spelling(spec, spec.align.spelling(found)) == found


def test_a_record_keeps_the_kind_of_its_domain():
    domain = FloatRange(minimum=-1.5)
    assert plain(domain) == {"kind": "float", "minimum": -1.5, "maximum": None}
    assert convert(plain(domain), Domain) == domain


def test_levels_that_are_one_number_are_one_case(make_plan, vary):
    plan = make_plan(baseline={"rollout.scale": 1}, interventions=vary(("rollout.scale", [0.5, 1.0, 1, 0.5])))
    assert [case.label for case in plan.cases] == ["baseline", "rollout.scale=0.5"]
    assert plan.cases[0].knobs["rollout.scale"] == 1.0
    same = make_plan(baseline={"rollout.scale": 1.0}, interventions=vary(("rollout.scale", [0.5])))
    assert [case.case_id for case in plan.cases] == [case.case_id for case in same.cases]

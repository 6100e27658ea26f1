"""A good pair of knobs, and sets of knobs that each break one rule: name of the broken test -> knobs."""

from __future__ import annotations

from typing import Any

from xcfg.schema.knobs import AlignSpec, Choice, Constraint, FloatRange, IntRange, KnobDefinition, Text
from xcfg.schema.names import Lifecycle, SourceClass, Target


def knob(name: str = "acme.mode", **fields: Any) -> KnobDefinition:
    """Return a good knob; keywords replace fields."""
    values: dict[str, Any] = {
        "summary": "a fake",
        "source_class": SourceClass.ARITHMETIC,
        "lifecycle": Lifecycle.ENGINE_CONSTRUCTION,
        "targets": Target.BOTH,
        "domain": Choice(values=("fast", "exact")),
        "aliases": {"quick": "fast"},
        "capability": "the library lists its modes",
        "apply": "passed to the constructor",
        "provenance": "read back from the object",
        "default": "fast",
        "align": AlignSpec(group="acme.mode", canonical={'"fast"': "FAST"}, reference="exact"),
        "constraints": (
            Constraint(code="ACME", when={"acme.mode": ("fast",)}, require={"batch.size": (1,)}, reason="one row"),
        ),
    }
    return KnobDefinition(name=name, **{**values, **fields})


GOOD = (knob(), knob("acme.rows", domain=IntRange(minimum=1), default=4, aliases={}, constraints=(), align=None,
             not_alignable="every runtime has its own rows"),
        knob("acme.scale", domain=FloatRange(minimum=0.0), default=1, aliases={}, constraints=(), align=None,
             not_alignable="only one engine scales"))  # fmt: skip

BAD: dict[str, tuple[KnobDefinition, ...]] = {
    "test_there_are_knobs": (),
    "test_names": (knob("Acme mode"),),
    "test_names_2": (knob(), knob()),
    "test_names_3": (knob("acme.tolerance"),),
    "test_names_4": (knob("acme.expected_status"),),
    "test_names_5": (knob("operators.gemm"),),
    "test_sentences": (knob(provenance=" "),),
    "test_domains": (knob(domain=Choice(values=()), aliases={}, default=None, constraints=(), align=None,
                     not_alignable="no"),),
    "test_domains_2": (knob(domain=IntRange(minimum=3, maximum=2), aliases={}, default=None, constraints=(),
                       align=None, not_alignable="no"),),
    "test_domains_3": (knob(domain=Text(pattern="("), aliases={}, default=None, constraints=(), align=None,
                       not_alignable="no"),),
    "test_domains_4": (knob(domain=FloatRange(minimum=0.5, maximum=0.4), aliases={}, default=None, constraints=(),
                       align=None, not_alignable="no"),),
    "test_domains_5": (knob(domain=FloatRange(maximum=float("inf")), aliases={}, default=None, constraints=(),
                       align=None, not_alignable="no"),),
    "test_default": (knob(default="slow"),),
    "test_default_2": (knob(domain=IntRange(), default=True, aliases={}, constraints=(), align=None,
                       not_alignable="no"),),
    "test_default_3": (knob(domain=FloatRange(), default=True, aliases={}, constraints=(), align=None,
                       not_alignable="no"),),
    "test_aliases": (knob(aliases={"quick": "slow"}),),
    "test_aliases_2": (knob(aliases={"fast": "exact"}),),
    "test_constraints": (knob(constraints=(Constraint(code="A", when={"acme.mode": ("slow",)}, reason="x"),)),),
    "test_constraints_2": (knob(constraints=(Constraint(code="A", when={"acme.mode": ("fast",)}),)),),
    "test_constraints_3": (knob(constraints=(Constraint(code="A", when={}, reason="x"),)),),
    "test_alignment": (knob(align=None),),
    "test_alignment_2": (knob(not_alignable="both"),),
    "test_alignment_3": (knob(align=AlignSpec(group="g", canonical={"fast": "FAST"})),),
    "test_alignment_4": (knob(align=AlignSpec(group="g", reference="slow")),),
}  # fmt: skip
"""A number behind the name only keeps the keys apart."""

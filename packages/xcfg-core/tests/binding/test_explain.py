"""What a refusal says, what the engine refuses itself, and which knob declares which field."""

from __future__ import annotations

from typing import Annotated

import pytest
from xcfg.binding import (
    DTYPE,
    NCCL_ALGO,
    SWITCH,
    Difference,
    Global,
    Stated,
    Violation,
    bind,
    compare_contracts,
    declared_by,
    fields_of,
)
from xcfg.errors import NotComparableError, PluginError, UnknownNameError
from xcfg.schema._base import Record
from xcfg.schema.codec import convert, plain
from xcfg.schema.names import Tier


class Inner(Record, frozen=True):
    """A part of a contract."""

    dtype: Annotated[str | None, Tier.IDENTICAL, DTYPE] = None
    downcast_at: Annotated[str | None, Tier.SEMANTIC] = None
    chain: Annotated[tuple[str, ...] | None, Tier.SEMANTIC, Violation()] = None


class Whole(Record, frozen=True):
    """A contract; no shards tile anything."""

    size: Annotated[int | None, Tier.IDENTICAL] = None
    inner: Inner | None = None
    shards: Annotated[tuple[int, ...] | None, Tier.IDENTICAL, Global(lambda value: None)] = None


def sides(first, second):
    """Two contracts that differ in `inner` at most, as training and rollout state them."""
    base = {"size": 8, "shards": (0, 3)}
    return (
        Stated(
            Whole(**base, inner=first), holder="training", origin="TransformerConfig", origins={"inner": "live model"}
        ),
        Stated(
            Whole(**base, inner=second), holder="rollout", origins={"inner.dtype": "logits of rank 0", "inner": "x"}
        ),
    )


GOOD = Inner(dtype="bf16", downcast_at="never", chain=())


def refusal(changed, **arguments):
    """The one refusal of a pair beside that of the shards, which the pair does not know."""
    found = [item for item in bind(*sides(GOOD, changed), **arguments).refusals if item.path != "shards"]
    assert len(found) == 1
    return found[0].explain()


def test_a_refusal_names_both_values_their_origin_and_the_cure():
    """If this fails, a person is told that something differs and must look for what."""
    said = refusal(Inner(dtype="float32", downcast_at="never", chain=()))
    assert said == (
        "inner.dtype (IDENTICAL): training has 'bf16' (live model), rollout has 'float32' (logits of rank 0); "
        "make them equal, or declare the difference, so that it is measured"
    )


def test_a_missing_value_names_who_must_report_it():
    """If this fails, a missing value is to be made equal to something."""
    said = refusal(Inner(dtype=None, downcast_at="never", chain=()), declared=("inner.dtype",))
    assert "rollout has not known (logits of rank 0); what is not known is not equal: let rollout report it" in said


def test_a_violation_says_that_no_declaration_helps():
    """If this fails, a person declares another distribution and takes what comes out for drift."""
    said = refusal(Inner(dtype="bf16", downcast_at="never", chain=("temperature:0.7",)), declared=("inner.chain",))
    assert "no declaration turns into drift: make them equal" in said


def test_a_value_that_does_not_hold_is_no_value():
    """If this fails, a gap between shards is answered as if it were a value."""
    one, two = sides(GOOD, GOOD)
    found = [item for item in bind(one, two).refusals if item.path == "shards"]
    assert "let the side whose value does not hold report it" in found[0].explain()


def test_a_recorded_difference_says_that_it_binds_nothing():
    """If this fails, a recorded difference reads like a refusal."""
    (found,) = compare_contracts(*(Noted(note=value) for value in ("a", "b")))
    assert found.explain() == (
        "note (RECORDED): the first side has 'a', the second side has 'b'; it is recorded and binds nothing"
    )


class Noted(Record, frozen=True):
    """One recorded field."""

    note: Annotated[str | None, Tier.RECORDED] = None


def test_a_difference_is_a_record_that_can_be_stored():
    """If this fails, refusals cannot lie beside a result."""
    (found,) = compare_contracts(Noted(note="a"), Noted(note="b"))
    assert convert(plain(found), Difference) == found


@pytest.mark.parametrize(
    ("knob", "fields"),
    [
        ("inner.dtype", ("inner.dtype",)),
        ("logprob.dtype@training", ("inner.dtype",)),
        ("training.downcast_at", ("inner.downcast_at",)),
        ("batch.size", ("size",)),
        ("logp.backend", ()),
    ],
)
def test_a_knob_declares_the_field_of_its_last_word(knob, fields):
    """If this fails, a varied knob is refused as undeclared, or declares what it does not set."""
    assert declared_by(Whole, [knob]) == fields


def test_a_declared_path_that_is_no_field_is_refused():
    """If this fails, a misspelt declaration is silently none."""
    with pytest.raises(UnknownNameError, match=r"'inner.dtyp' is no field of Whole"):
        bind(Whole(), Whole(), declared=("inner.dtyp",))


def test_contracts_of_two_operators_and_unknown_scopes_are_refused():
    """If this fails, an attention contract is judged by the fields of another one."""
    with pytest.raises(NotComparableError, match="Whole and Inner"):
        bind(Whole(), Inner())
    with pytest.raises(PluginError, match="scope"):
        bind(Whole(), Whole(), scope="end")


def test_a_field_needs_exactly_one_tier():
    """If this fails, a forgotten annotation makes a field invisible."""

    class Careless(Record, frozen=True):
        size: int = 1

    class Torn(Record, frozen=True):
        size: Annotated[int, Tier.RECORDED, Tier.SEMANTIC] = 1

    with pytest.raises(PluginError, match="'size' of Careless carries 0 tiers"):
        fields_of(Careless)
    with pytest.raises(PluginError, match="'size' of Torn carries 2 tiers"):
        fields_of(Torn)


def test_nan_equals_nothing_and_one_is_one_point_nought():
    """If this fails, a value that is no number is taken for agreement."""

    class Number(Record, frozen=True):
        value: Annotated[float | None, Tier.SEMANTIC] = None

    nan = Number(value=float("nan"))
    assert compare_contracts(nan, nan)
    assert not compare_contracts(Number(value=1), Number(value=1.0))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Tree", "allreduce:tree", True),
        ("tree,ring", "allreduce:Ring, Tree", True),
        ("Tree", "allreduce:tree;broadcast:ring", True),
        ("ring;allreduce:tree", "Tree", True),
        ("Tree", "Ring", False),
        ("^Tree", "Tree", False),
        ("Tree", "allreduce:tree;reducescatter:ring", False),
        ("", "unset", True),
        ("allgather:ring", "unset", True),
        ("unset", "Tree", False),
        ("Tree;", "Tree", True),
        (";Tree; ", "Tree", True),
        ("allreduce:tree;", "Tree", True),
        ("Tree;", "unset", False),
        (";", "unset", True),
    ],
)
def test_spellings_of_nccls_choice(one, other, equal):
    """If this fails, one NCCL setting in two spellings is refused, or two settings pass as one."""
    assert (NCCL_ALGO(one) == NCCL_ALGO(other)) == equal


def test_a_choice_of_nccl_has_one_form():
    """If this fails, the form depends on the order in which names were written."""
    assert NCCL_ALGO("^Tree, Ring,CollnetChain") == "^collnetchain,ring,tree"


def test_spellings_of_a_switch():
    """If this fails, `1` and `true` are two settings, or `unset` is one of them."""
    assert SWITCH("1") == SWITCH(" True") == SWITCH(True) == SWITCH(1) == "on"
    assert SWITCH("0") == SWITCH("off") == "off"
    assert SWITCH("unset") == "unset"

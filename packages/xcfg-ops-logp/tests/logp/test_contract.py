"""The contract engine and LogProbContract: what is not known, or not equal, is listed with its tier."""

from __future__ import annotations

from typing import Annotated

import pytest
from xcfg.errors import NotComparableError, PluginError
from xcfg.schema._base import Record
from xcfg.schema.codec import convert, plain
from xcfg.schema.names import Tier
from xcfg_ops_logp.compare import END_TO_END, blocking, compare_contracts
from xcfg_ops_logp.contract import (
    GatherSpec,
    LogProbContract,
    PrecisionSpec,
    TransformSpec,
    VocabSpec,
    reference_contract,
)

FIELDS = {
    "vocab.org_vocab_size": (Tier.IDENTICAL, 501),
    "vocab.padded_vocab_size": (Tier.RECORDED, 512),
    "vocab.num_pad_rows": (Tier.RECORDED, 12),
    "vocab.pad_row_init": (Tier.RECORDED, "zero"),
    "vocab.vocab_padding_policy": (Tier.SEMANTIC, "include"),
    "precision.head_dtype": (Tier.IDENTICAL, "float16"),
    "precision.accum_dtype": (Tier.SEMANTIC, "float32"),
    "precision.downcast_at": (Tier.SEMANTIC, "result"),
    "transform.transform_chain": (Tier.SEMANTIC, ("temperature:0.7",)),
    "transform.temperature_applied": (Tier.SEMANTIC, 0.7),
    "transform.logprobs_mode": (Tier.SEMANTIC, "processed_logprobs"),
    "transform.soft_cap": (Tier.SEMANTIC, 30.0),
    "transform.logit_scale": (Tier.SEMANTIC, 0.5),
    "gather.selected_gather": (Tier.RECORDED, "masked_sum_allreduce"),
    "gather.single_owner": (Tier.SEMANTIC, False),
    "gather.ignore_index": (Tier.SEMANTIC, -100),
    "gather.shift_convention": (Tier.SEMANTIC, "internal"),
}


def base() -> LogProbContract:
    """The contract of the reference over a small vocabulary."""
    return reference_contract(vocab_size=500, head_dtype="bfloat16")


def changed(path: str, value: object) -> LogProbContract:
    """The base with one field replaced."""
    document = plain(base())
    spec, name = path.split(".")
    document[spec][name] = value
    return convert(document, LogProbContract)


def test_equal_contracts_have_no_difference():
    """If this fails, everything is NOT_COMPARABLE."""
    assert compare_contracts(base(), base()) == ()


def test_every_field_is_in_the_table_below():
    """If this fails, a field was added that no test varies."""
    specs = {"vocab": VocabSpec, "precision": PrecisionSpec, "transform": TransformSpec, "gather": GatherSpec}
    assert {f"{name}.{field}" for name, spec in specs.items() for field in spec.__struct_fields__} == set(FIELDS)


@pytest.mark.parametrize("path", FIELDS)
def test_each_field_is_compared_with_its_tier(path):
    """If this fails, a difference of this field goes unseen or binds too much."""
    tier, value = FIELDS[path]
    found = compare_contracts(base(), changed(path, value))
    assert [(item.path, item.tier, item.second) for item in found] == [(path, tier, value)]
    assert bool(blocking(found)) == (tier is not Tier.RECORDED)
    assert blocking(found, declared=(path,)) == ()


@pytest.mark.parametrize("path", [path for path, (tier, _) in FIELDS.items() if tier is not Tier.RECORDED])
def test_a_missing_required_field_fails_closed(path):
    """If this fails, two sides that say nothing are called equal."""
    unknown = changed(path, None)
    for pair in ((base(), unknown), (unknown, base()), (unknown, unknown)):
        found = compare_contracts(*pair)
        assert [(item.path, item.missing) for item in found] == [(path, True)]
        assert blocking(found, declared=(path,)) == found, "an unknown value is no declared difference"


def test_an_empty_contract_misses_every_required_field():
    """If this fails, a side without a contract passes."""
    required = {path for path, (tier, _) in FIELDS.items() if tier is not Tier.RECORDED}
    assert {item.path for item in compare_contracts(LogProbContract(), LogProbContract())} == required


def test_a_recorded_field_may_be_unknown():
    """If this fails, an engine must know how its padding was initialised before anything is compared."""
    unknown = changed("vocab.pad_row_init", None)
    assert compare_contracts(unknown, unknown) == ()


@pytest.mark.parametrize("spelling", ["bf16", "torch.bfloat16", "BF16", " bfloat16"])
def test_spellings_are_brought_together(spelling):
    """If this fails, two names of one dtype are a false difference."""
    assert compare_contracts(base(), changed("precision.head_dtype", spelling)) == ()


def test_the_downcast_binds_rows_but_not_the_verdict():
    """If this fails, every production pair is NOT_COMPARABLE end to end."""
    other = changed("precision.downcast_at", "logits")
    assert compare_contracts(base(), other)[0].tier is Tier.SEMANTIC
    assert compare_contracts(base(), other, scope=END_TO_END)[0].tier is Tier.RECORDED
    with pytest.raises(PluginError, match="scope"):
        compare_contracts(base(), other, scope="end")


def test_true_is_not_one():
    """If this fails, a flag equals a count."""

    class Flags(Record, frozen=True):
        flag: Annotated[bool | int, Tier.SEMANTIC]

    assert compare_contracts(Flags(flag=True), Flags(flag=1))
    assert not compare_contracts(Flags(flag=True), Flags(flag=True))


def test_a_field_without_a_tier_is_refused():
    """If this fails, a forgotten annotation makes a field invisible."""

    class Careless(Record, frozen=True):
        size: int = 1

    with pytest.raises(PluginError, match="'size' of Careless carries 0 tiers"):
        compare_contracts(Careless(), Careless())


def test_an_absent_nested_contract_misses_its_fields():
    """If this fails, leaving out a whole part hides its differences."""

    class Inner(Record, frozen=True):
        size: Annotated[int | None, Tier.IDENTICAL] = None

    class Outer(Record, frozen=True):
        inner: Inner | None = None

    Inner.__module__ = Outer.__module__ = __name__
    globals().update(Inner=Inner, Outer=Outer)
    found = compare_contracts(Outer(), Outer(inner=Inner(size=3)))
    assert [(item.path, item.missing) for item in found] == [("inner.size", True)]


def test_contracts_of_two_operators_are_not_compared():
    """If this fails, an attention contract is judged by the fields of a log-probability contract."""
    with pytest.raises(NotComparableError, match="LogProbContract and VocabSpec"):
        compare_contracts(base(), VocabSpec())

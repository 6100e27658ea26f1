"""LogProbContract: each field with its tier, what a contract says of itself, and what two of them allow."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from xcfg.binding import END_TO_END, Stated, compare_contracts, fields_of
from xcfg.errors import IdentityError
from xcfg.schema.codec import convert, plain
from xcfg.schema.names import Tier
from xcfg_ops_logp.contract import LogProbContract, bind_logprob, contract_faults, reference_contract, vocab_of

SAME, S, R = Tier.IDENTICAL, Tier.SEMANTIC, Tier.RECORDED
VIOLATED = "violated"
ROWS = "rows"
FIELDS = {  # path -> tier, another value, and whether it is a violation or binds rows only
    "vocab.org_vocab_size": (SAME, 501, ""),
    "vocab.padded_vocab_size": (R, 512, ""),
    "vocab.num_pad_rows": (R, 12, ""),
    "vocab.pad_row_init": (R, "zero", ""),
    "vocab.pad_row_norm": (R, 1.5, ""),
    "vocab.vocab_padding_policy": (S, "include", ""),
    "sharding.vocab_shard_map": (SAME, ((0, 501),), ""),
    "sharding.padded_shard_map": (R, ((0, 512),), ""),
    "reduction.reduce": (S, "allgather_logits", ROWS),
    "reduction.merge_order": (S, "nccl_algo", ROWS),
    "reduction.acc_dtype": (S, "float32", ""),
    "reduction.collective": (R, "all_reduce", ""),
    "reduction.engine": (R, "nccl", ""),
    "reduction.NCCL_ALGO": (R, "Tree", ""),
    "reduction.NCCL_PROTO": (R, "Simple", ""),
    "reduction.world_topology": (R, "2x1", ""),
    "precision.model_dtype": (SAME, "float16", ROWS),
    "precision.head_dtype": (SAME, "float16", ""),
    "precision.accum_dtype": (S, "float32", ""),
    "precision.downcast_at": (S, "result", ROWS),
    "transform.transform_chain": (S, ("temperature:0.7",), VIOLATED),
    "transform.temperature_applied": (S, 0.7, VIOLATED),
    "transform.logprobs_mode": (S, "processed_logprobs", VIOLATED),
    "transform.soft_cap": (S, 30.0, VIOLATED),
    "transform.logit_scale": (S, 0.5, VIOLATED),
    "gather.selected_gather": (R, "masked_sum_allreduce", ""),
    "gather.single_owner": (S, False, ""),
    "gather.ignore_index": (S, -100, ""),
    "gather.active_mask": (S, "9f2c", VIOLATED),
    "gather.shift_convention": (S, "internal", VIOLATED),
    "materialization.logical_rows": (SAME, 5, ""),
    "materialization.materialization": (R, "chunked", ""),
    "materialization.head_gemm_kernel": (R, "cublas", ""),
    "materialization.physical_rows": (R, 8, ""),
    "materialization.padded_batch_size": (R, 8, ""),
    "fusion.fusion_impl": (R, "te", ""),
    "fusion.block_size": (R, 1024, ""),
    "fusion.chunk_size": (R, 512, ""),
    "backward.backward_impl": (R, "autograd", ""),
    "backward.grad_downcast_at": (S, "dlogits", ROWS),
    "backward.entropy_reduce": (S, "all_reduce", ""),
    "capability.impl": (R, "mcore_unfused", ""),
    "capability.version": (R, "0.16", ""),
    "capability.tp_size": (R, 2, ""),
    "capability.requested_backend": (R, "native", ""),
    "capability.actual_backend": (R, "other", ""),
    "capability.fallback_reason": (R, "no kernel", ""),
    "capability.properties": (R, (), ""),
}
REQUIRED = [path for path, (tier, _, _) in FIELDS.items() if tier is not R]


def base() -> LogProbContract:
    """The contract of the reference over a small vocabulary."""
    return reference_contract(vocab_size=500, head_dtype="bfloat16", rows=4)


def changed(path: str, value: object) -> LogProbContract:
    """The base with one field replaced."""
    document = plain(base())
    spec, name = path.split(".")
    document[spec][name] = value
    return convert(document, LogProbContract)


def test_every_field_of_the_ten_parts_is_in_the_table():
    """If this fails, a field was added that no test varies."""
    assert [item.path for item in fields_of(LogProbContract)] == list(FIELDS)
    assert len({path.partition(".")[0] for path in FIELDS}) == 10


def test_a_contract_agrees_with_itself():
    """If this fails, everything is NOT_COMPARABLE."""
    assert compare_contracts(base(), base()) == ()
    assert contract_faults(base()) == ()


@pytest.mark.parametrize("path", FIELDS)
def test_each_field_is_compared_with_its_tier(path):
    """If this fails, a difference of this field goes unseen or binds too much."""
    tier, value, kind = FIELDS[path]
    found = compare_contracts(base(), changed(path, value))
    assert [(item.path, item.tier, plain(item.second)) for item in found] == [(path, tier, plain(value))]
    assert found[0].violation == (kind == VIOLATED)
    whole = compare_contracts(base(), changed(path, value), scope=END_TO_END)
    assert [item.tier for item in whole] == [R if kind == ROWS else tier]


@pytest.mark.parametrize("path", REQUIRED)
def test_a_missing_required_field_fails_closed(path):
    """If this fails, two sides that say nothing are called equal."""
    unknown, knob = changed(path, None), f"logprob.{path.rpartition('.')[2]}"
    for pair in ((base(), unknown), (unknown, base()), (unknown, unknown)):
        found = bind_logprob(*pair, knobs=[knob])
        assert (found.status, [item.path for item in found.refusals]) == ("NOT_COMPARABLE", [path])
        assert found.refusals[0].missing


def test_an_empty_contract_misses_every_required_field():
    """If this fails, a side without a contract passes."""
    found = bind_logprob(LogProbContract(), LogProbContract())
    assert [item.path for item in found.refusals] == REQUIRED


@pytest.mark.parametrize("path", [path for path, (tier, _, kind) in FIELDS.items() if kind == VIOLATED])
def test_another_distribution_is_never_drift(path):
    """If this fails, a declared temperature on one side is measured as if arithmetic had made it."""
    value = FIELDS[path][1]
    other = plain(changed(path, value))
    if path == "transform.temperature_applied":
        other["transform"]["transform_chain"] = [f"temperature:{value}"]
    if path == "transform.transform_chain":
        other["transform"]["temperature_applied"] = 0.7
    found = bind_logprob(base(), convert(other, LogProbContract), knobs=[f"logprob.{path.rpartition('.')[2]}"])
    assert found.status == "INVALID_IDENTITY"
    assert path in [item.path for item in found.refusals]


@pytest.mark.parametrize(
    ("chain", "equal"),
    [
        (("temperature:0.70", "top_p:0.9"), True),
        ((" Temperature: 0.7", "top_p:.9"), True),
        (("temperature:0.7", "top_k:0", "top_p:0.9", "logit_scale:1"), True),
        (("top_p:0.9", "temperature:0.7"), False),
        (("temperature:0.7",), False),
        (("temperature:0.7", "top_p:0.9", "penalty:on"), False),
    ],
)
def test_a_chain_is_compared_by_what_it_does(chain, equal):
    """If this fails, a spelling costs a verdict, or an order of transforms does not."""
    first = plain(changed("transform.transform_chain", ("temperature:0.7", "top_p:0.9")))
    second = plain(changed("transform.transform_chain", chain))
    for document in (first, second):
        document["transform"]["temperature_applied"] = 0.7
    found = bind_logprob(convert(first, LogProbContract), convert(second, LogProbContract))
    assert found.comparable == equal


@pytest.mark.parametrize("spelling", ["bf16", "torch.bfloat16", "BF16", " bfloat16"])
def test_spellings_are_brought_together(spelling):
    """If this fails, two names of one dtype are a false difference."""
    assert compare_contracts(base(), changed("precision.head_dtype", spelling)) == ()


FAULTS = {
    "vocab.padded_vocab_size": (499, "smaller than"),
    "vocab.num_pad_rows": (12, "500 columns hold 500 ids"),
    "sharding.vocab_shard_map": (((0, 250), (251, 500)), "leaves a gap"),
    "sharding.padded_shard_map": (((0, 512),), "vocab.padded_vocab_size is 500"),
    "vocab.org_vocab_size": (498, "tiles [0, 500), and vocab.org_vocab_size is 498"),
    "capability.tp_size": (2, "1 shards for capability.tp_size 2"),
    "gather.ignore_index": (7, "a real id of 500"),
    "transform.temperature_applied": (0.7, "transform.transform_chain []"),
}


@pytest.mark.parametrize("path", FAULTS)
def test_a_contract_that_contradicts_itself_is_compared_with_nothing(path):
    """If this fails, a shard map with a gap is called equal to itself."""
    value, said = FAULTS[path]
    wrong = changed(path, value)
    assert any(said in text for text in contract_faults(wrong))
    with pytest.raises(IdentityError, match="the contract of rollout contradicts itself"):
        bind_logprob(base(), Stated(wrong, holder="rollout"))
    with pytest.raises(IdentityError, match="the contract of the first side"):
        bind_logprob(wrong, wrong)


def test_what_is_no_contradiction_is_none():
    """If this fails, an ignored id beyond the vocabulary, or a map that is not known, costs the comparison."""
    for ignored in (-100, 500, "none"):
        assert contract_faults(changed("gather.ignore_index", ignored)) == ()
    assert contract_faults(LogProbContract()) == ()
    short = changed("sharding.vocab_shard_map", ((0, 499),))
    assert "tiles [0, 499), and vocab.org_vocab_size is 500" in contract_faults(short)[0]


def test_overlapping_shards_give_an_id_two_owners():
    """If this fails, an id is gathered twice and summed."""
    assert contract_faults(changed("sharding.vocab_shard_map", ((0, 251), (250, 500))))


def test_the_real_part_of_a_padded_map_is_the_map():
    """If this fails, the two maps of one side may speak of different layouts."""
    document = plain(base())
    document["vocab"] |= {"padded_vocab_size": 512, "num_pad_rows": 12}
    document["capability"]["tp_size"] = 2
    document["sharding"] = {"padded_shard_map": [[0, 256], [256, 512]], "vocab_shard_map": [[0, 256], [256, 500]]}
    assert contract_faults(convert(document, LogProbContract)) == ()
    document["sharding"]["vocab_shard_map"] = [[0, 250], [250, 500]]
    assert "is not the real part" in contract_faults(convert(document, LogProbContract))[0]


def test_a_score_reports_its_vocabulary():
    """If this fails, what an engine reports of its padding does not reach the contract."""
    found = vocab_of({"vocabulary": {"policy": "include", "real": 500, "padded": 768}})
    assert (found.org_vocab_size, found.padded_vocab_size, found.num_pad_rows) == (500, 768, 268)
    assert found.vocab_padding_policy == "include"
    assert vocab_of({}).org_vocab_size is None
    odd = vocab_of({"vocabulary": {"policy": "sums over [300] columns", "real": 500, "padded": 500}})
    assert odd.vocab_padding_policy is None, "another word is not known, and fails closed"


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("vocab", "org_vocab_size", "512"),
        ("vocab", "org_vocab_size", True),
        ("sharding", "vocab_shard_map", 5),
        ("sharding", "vocab_shard_map", ((0, "512"),)),
        ("transform", "transform_chain", "temperature:0.7"),
        ("precision", "head_dtype", 16),
    ],
)
def test_a_field_of_another_type_is_a_fault_and_no_traceback(part, field, value):
    """If this fails, a contract made by hand ends in a TypeError, or its text is compared with a number."""
    sound = reference_contract(vocab_size=500, head_dtype="bfloat16", rows=4)
    wrong = replace(sound, **{part: replace(getattr(sound, part), **{field: value})})
    (fault,) = contract_faults(wrong)
    assert f"{part}.{field}" in fault
    with pytest.raises(IdentityError, match="contradicts itself"):
        bind_logprob(sound, wrong)
    assert vocab_of({"vocabulary": {"real": True, "padded": 512, "policy": "mask"}}).org_vocab_size is None

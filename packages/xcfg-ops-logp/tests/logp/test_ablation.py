"""`xcfg.ablation_logp`: every option against float64, and what it states of its last call."""

from __future__ import annotations

import re

import pytest
import torch
from xcfg.errors import ConfigError, IdentityError, UsageError
from xcfg.planning.normalise import normalise_value
from xcfg_ops_logp.ablation.descriptor import ABLATION, OPTIONS
from xcfg_ops_logp.ablation.descriptor import ACTS_WHERE as ABLATION_NEEDS
from xcfg_ops_logp.ablation.head_descriptor import ACTS_WHERE as HEAD_NEEDS
from xcfg_ops_logp.ablation.head_descriptor import OPTIONS as HEAD_OPTIONS
from xcfg_ops_logp.ablation.knobs import KNOBS
from xcfg_ops_logp.ablation.operator import Ablation, transformed
from xcfg_ops_logp.contract.specs import LogProbContract
from xcfg_ops_logp.reference import evaluate, selected_logprob
from xcfg_ops_logp.torch_backends import REFERENCE_FLOAT32
from xcfg_testkit import SelectedLogprobContract

EPS = torch.finfo(torch.float32).eps
SPLIT = {"vocab_shard_map": "even:4", "reduce": "allgather_partials_fixed_merge"}


class TestContract(SelectedLogprobContract):
    """Every declared dtype and claim, with the options at their defaults."""

    descriptor = ABLATION


def operands(entries: int, rows: int = 9, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(entries)
    logits = (5 * torch.randn(rows, entries, generator=generator)).to(dtype)
    return logits, torch.randint(0, entries, (rows,), generator=generator)


def bound(exact) -> float:
    return 4 * EPS * float(exact.logprob.abs().max() + exact.logsumexp.abs().max())


@pytest.mark.parametrize("entries", [1, 2, 500, 512, 49_152])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block_size": 3},
        SPLIT,
        {**SPLIT, "merge_order": "reverse_vocab_shard_index"},
        {**SPLIT, "merge_order": "pairwise_tree"},
        {**SPLIT, "reduce": "allreduce_partials"},
        {**SPLIT, "vocab_shard_map": "vllm:2"},
        {**SPLIT, "vocab_shard_map": "megatron:2", "selected_gather": "masked_sum_allreduce"},
        {"accum_dtype": "float64"},
    ],
)
def test_an_option_that_is_the_same_function_stays_within_rounding(entries, options):
    """If this fails, an axis that is about the order of a sum computes another sum."""
    logits, selected = operands(entries, rows=3)
    exact = evaluate(logits, selected)
    found = Ablation(**options).values(logits, selected)
    for value, wanted in zip(found, exact[:2], strict=True):
        assert (value.double() - wanted).abs().max() <= bound(exact)
    if options.get("accum_dtype") == "float64":
        assert (found[0] - exact.logprob).abs().max() < 1e-12


def test_the_gather_moves_no_bit():
    """If this fails, the sum over owners adds something beside the one logit that is owned."""
    logits, selected = operands(500)
    first, second = (
        Ablation(**SPLIT, selected_gather=name)(logits, selected) for name in ("local_gather", "masked_sum_allreduce")
    )
    assert torch.equal(first, second)


def test_an_order_of_ranks_is_seen():
    """If this fails, the merge order is an option without effect, and a probe of it cannot fail."""
    logits, selected = operands(49_152, rows=32)
    orders = ("global_vocab_shard_index", "reverse_vocab_shard_index", "pairwise_tree")
    split = {**SPLIT, "vocab_shard_map": "even:8"}
    found = [Ablation(**split, merge_order=order)(logits, selected) for order in orders]
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    two = [Ablation(**{**SPLIT, "vocab_shard_map": "even:2"}, merge_order=order)(logits, selected) for order in orders]
    assert torch.equal(two[0], two[1]), "two ranks cannot show an order"


@pytest.mark.parametrize(("real", "padded"), [(500, 512), (500, 768), (151_936, 152_064)])
def test_padded_columns_of_zero_rows_shift_the_value_by_a_closed_form(real, padded):
    """If this fails, include is not what an engine without a mask computes."""
    logits, selected = operands(real, rows=4)
    masked = Ablation(padded_vocab_size=padded)
    assert torch.equal(masked(logits, selected), Ablation()(logits, selected)), "masked columns add exactly 0"
    assert masked.stated["vocabulary"] == {"policy": "mask", "real": real, "padded": padded}
    include = Ablation(padded_vocab_size=padded, vocab_padding_policy="include")
    exact = evaluate(logits, selected)
    wanted = exact.logprob - torch.log1p((padded - real) * torch.exp(-exact.logsumexp))
    assert (include(logits, selected).double() - wanted).abs().max() <= bound(exact)
    assert include.stated["vocabulary"]["policy"] == "include"


@pytest.mark.parametrize("place", ["logits", "partials", "result"])
def test_a_downcast_is_that_of_its_place(place):
    """If this fails, digits are dropped somewhere else than the option says."""
    logits, selected = operands(500, rows=6)
    found = Ablation(**SPLIT, downcast_at=place)(logits, selected).double()
    exact = evaluate(logits, selected)
    narrow = torch.finfo(torch.bfloat16).eps
    if place == "logits":
        wanted = selected_logprob(logits.bfloat16(), selected)
        assert (found - wanted).abs().max() <= bound(exact)
    elif place == "result":
        assert torch.equal(found, Ablation(**SPLIT)(logits, selected).bfloat16().double())
    else:
        assert bound(exact) < (found - exact.logprob).abs().max() <= 2 * narrow * float(logits.abs().max())


def test_a_chain_is_done_in_its_order():
    """If this fails, two chains of the same steps are one."""
    logits, selected = operands(500, dtype=torch.float64)
    found = Ablation(transform_chain="temperature:0.7,soft_cap:5")
    other = Ablation(transform_chain="soft_cap:5,temperature:0.7")
    wanted = selected_logprob(transformed(logits / 0.7, "soft_cap", 5.0), selected)
    assert (found(logits, selected) - wanted).abs().max() < 1e-12
    assert (found(logits, selected) - other(logits, selected)).abs().max() > 0.1
    assert found.transforms == ("temperature:0.7", "soft_cap:5.0")
    assert Ablation().transforms == ()
    domain = next(item.domain for item in OPTIONS if item.name == "transform_chain")
    for right in ("none", "temperature:0.7,soft_cap:30", "logit_scale:1e-2", "temperature:10.0E+5"):
        assert re.fullmatch(domain.pattern, right)
        Ablation(transform_chain=right)
    for wrong in (
        "temperature:0.0",
        "temperature:1e",
        "temperature:1.2.3",
        "temperature:1e400",
        "soft_cap:-1",
        "none,",
    ):
        assert not re.fullmatch(domain.pattern, wrong), "refused before anything runs"
    for wrong in ("temperature:0", "temperature", "top_p:0.9"):
        assert not re.fullmatch(domain.pattern, wrong)
        with pytest.raises(UsageError, match="the step"):
            Ablation(transform_chain=wrong)


def test_an_internal_shift_says_which_ids_it_scored():
    """If this fails, a shift by one is reported as drift of the token before."""
    logits, selected = operands(500)
    shifted = Ablation(shift_convention="internal")
    assert torch.equal(shifted(logits, selected), Ablation()(logits, selected.roll(-1)))
    assert torch.equal(shifted.scored_ids, selected.roll(-1))


def test_ignored_and_unknown_ids():
    """If this fails, a padding id is scored, or an id outside the vocabulary is clamped."""
    logits, selected = operands(500)
    selected[2] = -100
    with pytest.raises(IdentityError, match="-100 in row 2"):
        Ablation()(logits, selected)
    found = Ablation(ignore_index=-100)(logits, selected)
    assert found.isnan().nonzero().tolist() == [[2]]
    selected[2] = 500
    with pytest.raises(IdentityError, match="500 in row 2"):
        Ablation(padded_vocab_size=512, vocab_padding_policy="include")(logits, selected)


@pytest.mark.parametrize("options", [{}, SPLIT, {"block_size": 64}, {**SPLIT, "reduce": "allreduce_partials"}])
def test_the_gradient_is_that_of_float64(options):
    """If this fails, an axis that leaves the value alone changes what is learnt."""
    logits, selected = operands(512)
    logits[0, 3] = logits[0].max()
    leaf, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    Ablation(**options)(leaf, selected).sum().backward()
    exact.log_softmax(-1).gather(-1, selected[:, None]).sum().backward()
    assert (leaf.grad.double() - exact.grad).abs().max() < 8 * EPS


@pytest.mark.parametrize("special", ["all -inf", "nan", "+inf", "some -inf"])
def test_rows_without_a_distribution_are_nan(special):
    """If this fails, such a row has a value that a comparison passes."""
    logits, selected = operands(16, rows=2)
    selected[:] = 1
    logits[0] = {"all -inf": -torch.inf, "nan": torch.nan, "+inf": torch.inf}.get(special, 0.0)
    if special == "some -inf":
        logits[0, 2:] = -torch.inf
    for options in ({}, SPLIT, {**SPLIT, "reduce": "allreduce_partials"}, {"block_size": 1}):
        found = Ablation(**options)(logits, selected)
        wanted = evaluate(logits, selected).logprob
        assert found.isnan().tolist() == wanted.isnan().tolist() == [special != "some -inf", False]


def test_what_did_not_act_is_not_stated_as_run():
    """If this fails, an option without effect is read back as applied."""
    logits, selected = operands(500)
    idle = {"block_size": 512, "merge_order": "pairwise_tree", "vocab_padding_policy": "include"}
    said = Ablation(**idle)
    said(logits, selected)
    assert all(said.stated["options"][name] != value for name, value in idle.items())
    acting = {
        **SPLIT,
        "block_size": 64,
        "merge_order": "pairwise_tree",
        "head_dtype": "bfloat16",
        "downcast_at": "result",
    }
    said = Ablation(**acting)
    said(logits, selected)
    assert {name: said.stated["options"][name] for name in acting} == acting


def test_what_this_call_could_not_show_is_left_out_or_is_what_it_would_have_been():
    """If this fails, a shift of one row, a dtype that rounds nothing or a sum over one owner reads as what ran."""
    logits, selected = operands(64)
    shifted = Ablation(shift_convention="internal")
    shifted(logits[:1], selected[:1])
    assert "shift_convention" not in shifted.stated["options"]
    shifted(logits, selected)
    assert shifted.stated["options"]["shift_convention"] == "internal"
    for dtype, head, ran in (
        (torch.float32, "float32", "as_is"),
        (torch.bfloat16, "float32", "as_is"),
        (torch.bfloat16, "bfloat16", "as_is"),
        (torch.float32, "bfloat16", "bfloat16"),
        (torch.bfloat16, "float16", "float16"),
    ):
        operator = Ablation(head_dtype=head)
        operator(logits.to(dtype), selected)
        assert operator.stated["options"]["head_dtype"] == ran, (dtype, head)
    for shards, ran in ({}, "local_gather"), (SPLIT, "masked_sum_allreduce"):
        operator = Ablation(selected_gather="masked_sum_allreduce", **shards)
        operator(logits, selected)
        assert operator.stated["options"]["selected_gather"] == ran


def test_a_map_of_an_engine_that_pads_less_is_refused():
    """If this fails, columns lie on no rank."""
    logits, selected = operands(500)
    with pytest.raises(UsageError, match="512 columns"):
        Ablation(**{**SPLIT, "vocab_shard_map": "vllm:2"}, padded_vocab_size=768)(logits, selected)
    wide = Ablation(**{**SPLIT, "vocab_shard_map": "megatron:2:384"}, padded_vocab_size=768)
    assert (wide(logits, selected).double() - selected_logprob(logits, selected)).abs().max() < bound(
        evaluate(logits, selected)
    )


def test_knobs_are_options_and_fields():
    """If this fails, a knob declares no field of the contract, or sets no option."""
    names = {item.name for item in OPTIONS}
    parts = [
        part
        for field in LogProbContract.__struct_fields__
        for part in getattr(LogProbContract(), field).__struct_fields__
    ]
    for knob in KNOBS:
        option = knob.name.partition(".")[2]
        assert option in names and option in parts, knob.name
    assert REFERENCE_FLOAT32.operation == ABLATION.operation


@pytest.mark.parametrize(("words", "options"), [(ABLATION_NEEDS, OPTIONS), (HEAD_NEEDS, HEAD_OPTIONS)])
def test_what_an_option_needs_is_said_of_options_that_are_there(words, options):
    """If this fails, an option was renamed and its fallback explains nothing."""
    assert words.keys() <= {item.name for item in options}


def test_a_call_without_rows_has_a_gradient_without_rows():
    """If this fails, the backward of an empty batch raises with this operator and with no other."""
    logits = torch.zeros(0, 7, dtype=torch.bfloat16, requires_grad=True)
    found = Ablation()(logits, torch.zeros(0, dtype=torch.int64))
    assert (found.shape, found.dtype) == ((0,), torch.float32)
    found.sum().backward()
    assert logits.grad.shape == (0, 7)


def test_a_chain_that_is_none_is_answered_with_an_example():
    """If this fails, a person who mistyped a temperature is handed a pattern and nothing to copy."""
    knob = next(item for item in KNOBS if item.name == "logprob.transform_chain")
    with pytest.raises(ConfigError, match="UNSUPPORTED_VALUE") as caught:
        normalise_value(knob, "temperature:0")
    assert caught.value.hint.startswith("None, or ordered steps above 0, such as temperature:0.7,soft_cap:30")
    assert "As a pattern: 'none|" in caught.value.hint

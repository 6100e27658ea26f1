"""`xcfg.ablation_linear_logp`: every option against float64, bits of the fixed order, and what it states of a call."""

from __future__ import annotations

import pytest
import torch
from oracle64 import gradients, same_bits, three
from xcfg.errors import IdentityError, UsageError
from xcfg.plugin.stated import Statements
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg_ops_logp.ablation import head_product
from xcfg_ops_logp.ablation.descriptor import OPTIONS as LOGITS_OPTIONS
from xcfg_ops_logp.ablation.head import AblationLinear
from xcfg_ops_logp.ablation.head_descriptor import ABLATION_LINEAR, KNOBS, OPTIONS
from xcfg_testkit import LinearSelectedLogprobContract

BATCHES = (1, 3, 17, 64)
CHOICES = [
    {},
    {"materialization": "chunked", "chunk_size": 4},
    {"materialization": "last_token_only"},
    {"head_gemm_kernel": "fixed_order"},
    {"fusion_impl": "chunked_linear_ce", "vocab_block_size": 7},
    {"fusion_impl": "chunked_linear_ce", "materialization": "chunked", "chunk_size": 3, "vocab_block_size": 64},
]
FIXED = {"head_gemm_kernel": "fixed_order"}


class TestContract(LinearSelectedLogprobContract):
    """Every declared dtype and claim, with the options at their defaults."""

    descriptor = ABLATION_LINEAR


class TestFused(LinearSelectedLogprobContract):
    """The vocabulary in blocks, and few rows in one product."""

    descriptor = ABLATION_LINEAR
    options = {
        "fusion_impl": "chunked_linear_ce",
        "vocab_block_size": 20,
        "materialization": "chunked",
        "chunk_size": 8,
    }
    long_shape = (1_021, 64)
    cost_shape = (8, 512, 64)


class TestFixedOrder(LinearSelectedLogprobContract):
    """With this kernel a row has its bits in every batch, which the backend as a whole does not declare."""

    descriptor = OperatorBackendDescriptor(
        **{name: getattr(ABLATION_LINEAR, name) for name in ABLATION_LINEAR.__struct_fields__}
        | {"properties": ("run-to-run", "batch-invariant")}
    )
    options = FIXED
    long_shape = (1_021, 192)
    cost_shape = (8, 512, 64)


def case(rows, columns, depth, dtype=torch.float64):
    """hidden, weight, ids; seeded."""
    generator = torch.Generator().manual_seed(rows + 17 * columns + 101 * depth)
    hidden = torch.randn(rows, depth, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(columns, depth, generator=generator, dtype=torch.float64).to(dtype)
    return hidden, weight, torch.randint(0, columns, (rows,), generator=generator)


@pytest.mark.parametrize("options", CHOICES)
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 1, 1), (9, 2, 3), (10, 500, 150)])
def test_values_and_gradients_against_float64(options, rows, columns, depth):
    """If this fails, an option computes another function, or a gradient is lost on its way."""
    hidden, weight, ids = case(rows, columns, depth)
    wide = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    logits = wide[0] @ wide[1].t()
    logp, lse, _ = three(logits, ids)
    leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    found = AblationLinear(**options).values(*leaves, ids)
    picked = logits.gather(-1, ids[:, None])[:, 0]
    for mine, theirs in zip(found, (logp, picked, lse), strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach(), rtol=1e-12, atol=1e-12)
    slope = torch.randn(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    want = gradients((logp,), (slope,), wide)
    for mine, theirs in zip(torch.autograd.grad(found.logprob, leaves, slope), want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


def test_blocks_of_the_vocabulary_are_not_kept_for_the_backward():
    """If this fails, chunked_linear_ce forms all logits after all, one block after the other."""
    hidden, weight, ids = case(64, 500, 4, torch.float32)

    def kept(**options):
        found: list[int] = []

        def pack(tensor):
            found.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            AblationLinear(**options)(hidden.requires_grad_(), weight.requires_grad_(), ids)
        return max(found)

    assert kept() >= 64 * 500
    assert kept(fusion_impl="chunked_linear_ce", vocab_block_size=50) <= weight.numel()


def bits_by_batch(kernel, hidden, weight):
    """For each size of a batch, in how many of its rows a logit has other bits than in the batch of all."""
    together = kernel(hidden, weight)
    return {
        size: sum(
            not same_bits(kernel(hidden[start : start + size].clone(), weight), together[start : start + size])
            for start in range(0, len(hidden) - size + 1, size)
        )
        for size in BATCHES
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_fixed_order_has_one_row_one_bits(dtype):
    """If this fails, the product of a row depends on the rows beside it, or on where it lies among them."""
    hidden, weight, _ = case(64, 333, 150, dtype)
    assert bits_by_batch(head_product.fixed_order, hidden, weight) == dict.fromkeys(BATCHES, 0)


def test_an_order_that_follows_the_batch_is_seen():
    """If this fails, the test above would hold for any product."""
    hidden, weight, _ = case(64, 333, 150, torch.float32)

    def planted(rows, columns):
        if len(rows) < 64:  # K from the last to the first in a small batch
            rows, columns = rows.flip(1), columns.flip(1)
        return head_product.fixed_order(rows, columns)

    found = bits_by_batch(planted, hidden, weight)
    assert found[64] == 0 and all(found[size] > 0 for size in (1, 3, 17))


def test_tiles_of_memory_move_no_bit(monkeypatch):
    """If this fails, how much is worked on at a time is part of the order of the sum."""
    hidden, weight, _ = case(20, 333, 150, torch.float32)
    whole = head_product.fixed_order(hidden, weight)
    monkeypatch.setattr(head_product, "ROWS", 3)
    monkeypatch.setattr(head_product, "ELEMENTS", 3 * 64 * 11)
    assert same_bits(head_product.fixed_order(hidden, weight), whole)


def test_the_order_is_blocks_of_k_in_turn():
    """If this fails, the order that the option names is another one: worked out by hand on sums that it decides."""
    big, depth = 2.0**24, head_product.DEPTH
    hidden = torch.zeros(1, 2 * depth + 1)
    hidden[0, 0], hidden[0, depth], hidden[0, depth + 1], hidden[0, -1] = big, 1.0, 1.0, -big
    # (2^24) + (1 + 1) - 2^24: the second block is added up first. One after the other, 2^24 + 1 is 2^24 twice.
    assert head_product.fixed_order(hidden, torch.ones(1, 2 * depth + 1)).item() == 2.0


@pytest.mark.parametrize(
    ("gemm", "dtype"), [("bfloat16", torch.float32), ("float32", torch.bfloat16), ("float64", torch.bfloat16)]
)
@pytest.mark.parametrize("options", [{}, FIXED])
def test_the_dtype_of_the_product_is_what_float64_says(gemm, dtype, options):
    """If this fails, operands or logits are rounded where the option does not say so, or are not where it does."""
    hidden, weight, ids = case(32, 500, 64, dtype)
    hidden = hidden / 4
    kind = getattr(torch, gemm)
    logits = hidden.to(kind).double() @ weight.to(kind).double().t()
    found = AblationLinear(head_gemm_dtype=gemm, **options)(hidden, weight, ids).double()
    logits = logits.bfloat16().double() if gemm == "bfloat16" else logits
    want = three(logits, ids)[0]
    step = torch.finfo(torch.float32).eps * 200 * float(logits.abs().max())
    if gemm == "bfloat16":  # a logit next to the middle of two bfloat16 may round to either
        assert ((found - want).abs() <= step).double().mean() > 0.9
        return
    assert (found - want).abs().max() <= (1e-12 if gemm == "float64" else step)
    own = AblationLinear(**options)(hidden, weight, ids).double()
    assert (own - want).abs().max() > 10 * step, "the option moved nothing"


def test_what_ran_is_stated_and_what_changed_nothing_is_not():
    """If this fails, an option counts as applied where the arithmetic is that of another."""
    hidden, weight, ids = case(8, 40, 6, torch.float32)

    def stated(rows=8, **options):
        operator = AblationLinear(**options)
        operator(hidden[:rows], weight, ids[:rows])
        return operator.stated["options"]

    default = {item.name: item.default for item in OPTIONS if item.name != "ignore_index"}
    assert stated() == default
    for asked in (
        {"materialization": "last_token_only"},
        {"materialization": "chunked", "chunk_size": 7},
        {"head_gemm_kernel": "fixed_order"},
        {"head_gemm_dtype": "float64"},
        {"fusion_impl": "chunked_linear_ce"},
        {"fusion_impl": "chunked_linear_ce", "vocab_block_size": 39},
    ):
        assert stated(**asked) == default | asked
    for asked in (
        {"materialization": "chunked", "chunk_size": 8},
        {"materialization": "chunked"},
        {"chunk_size": 4},
        {"head_gemm_dtype": "float32"},
        {"fusion_impl": "chunked_linear_ce", "vocab_block_size": 40},
        {"vocab_block_size": 4},
    ):
        assert stated(**asked) == default
    assert stated(rows=1, materialization="last_token_only") == default


def test_the_calls_with_the_most_rows_are_what_a_score_states():
    """If this fails, the few rows of a first or last batch take back what all others did."""
    hidden, weight, ids = case(8, 40, 6, torch.float32)
    operator = AblationLinear(materialization="chunked", chunk_size=3)
    found = Statements()
    for rows in (1, 8, 2):
        operator(hidden[:rows], weight, ids[:rows])
        found.take(operator, ids[:rows])
        assert operator.stated["options"]["materialization"] == ("chunked" if rows > 3 else "full_prefill")
    assert (found.rows, found.options["materialization"], found.options["chunk_size"]) == (8, ["chunked"], [3])
    apart = Statements()
    apart.take(operator, ids[:2])
    found.add(apart)
    assert found.options["materialization"] == ["chunked"]
    apart.add(found)
    assert apart.options == found.options
    assert Statements.of(found.plain()) == found


def test_the_exact_sum_is_of_the_same_logits():
    """If this fails, drift of the product and drift of the sum behind it are not told apart."""
    hidden, weight, ids = case(20, 500, 150, torch.bfloat16)
    hidden = hidden / 4
    whole, blocks = (AblationLinear(**FIXED, fusion_impl=name) for name in ("none", "chunked_linear_ce"))
    first, second = whole.columns(hidden, weight, ids), blocks.columns(hidden, weight, ids)
    want = three(head_product.fixed_order(hidden, weight).double(), ids)
    torch.testing.assert_close(first["exact_logprob"], want[0], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(first["logsumexp"].double(), want[1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(second["exact_logprob"], first["exact_logprob"], rtol=1e-13, atol=1e-13)
    assert torch.equal(first["selected_logit"], second["selected_logit"])
    assert set(first) == set(AblationLinear.offers)
    exact = AblationLinear(head_gemm_dtype="float64").columns(hidden, weight, ids)["exact_logprob"]
    assert (exact - first["exact_logprob"]).abs().max() > 1e-3, "bfloat16 logits are other logits"


def test_every_option_but_the_ignored_id_is_a_knob_of_this_operator_alone():
    """If this fails, an axis cannot be set from an experiment, or one name means two operators' options."""
    assert {knob.name for knob in KNOBS} == {f"logprob.{item.name}" for item in OPTIONS if item.name != "ignore_index"}
    assert {knob.option_of for knob in KNOBS} == {"linear_selected_logprob"}
    assert {item.name for item in OPTIONS} & {item.name for item in LOGITS_OPTIONS} == {"ignore_index"}


def test_refusals():
    """If this fails, a value outside its domain, an id outside the vocabulary or an ignored row is scored."""
    hidden, weight, ids = case(4, 9, 3)
    for bad in ({"materialization": "all"}, {"chunk_size": -1}, {"vocab_block_size": 2.0}, {"head_gemm_dtype": "int8"}):
        with pytest.raises(UsageError, match=next(iter(bad))):
            AblationLinear(**bad)
    with pytest.raises(TypeError, match="no option 'tile'"):
        AblationLinear(tile=3)
    ids[1] = -100
    assert AblationLinear(ignore_index=-100)(hidden, weight, ids).isnan().tolist() == [False, True, False, False]
    with pytest.raises(IdentityError, match="outside the vocabulary of 9"):
        AblationLinear()(hidden, weight, ids)
    for options in CHOICES:
        assert AblationLinear(**options)(hidden[:0], weight, ids[:0]).shape == (0,)

"""Run by test_interpreter.py in a process with TRITON_INTERPRET=1: the kernels in float32 and float16 on a CPU.

The interpreter computes bfloat16 wrongly without a word, and is slow: bfloat16 and vocabularies above 4,099 are left to
the tests on a card.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import msgspec
import pytest
import torch
from hard_rows import cases, check_gradients, check_values, named
from oracle64 import close, gradients, hard_logits, ids_for, moved, same_bits, three
from test_kernels_gpu import INTERPRETED
from xcfg.errors import IdentityError, UsageError
from xcfg_ops_logp import triton_logits
from xcfg_ops_logp.kernel_backends import BLOCKS, TILES, TRITON
from xcfg_ops_logp.kernels import linear, linear_tile
from xcfg_ops_logp.kernels import selected as kernel
from xcfg_ops_logp.linear import fused
from xcfg_ops_logp.linear.reference import reference
from xcfg_testkit import LinearSelectedLogprobContract, SelectedLogprobContract

# The interpreter computes with numpy, which warns where a card gives NaN or an infinity.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
VOCABULARIES = (1, 2, 500, 512)
RIGHT = ("float16", "float32")
SMALL = kernel.Plan(tile_rows=2, tile_columns=32, segment=128, warps=1)
FORMS = {
    "blocks": linear.Blocks(rows=4, columns=96, plan=SMALL),
    "tiles": linear_tile.Tiles(rows=16, columns=16, depth=16, warps=1, stages=1),
}
BACKWARD = linear.Blocks(rows=4, columns=96, plan=SMALL)


def here(descriptor):
    """What the backend declares, on the dtypes that the interpreter computes rightly."""
    dtypes = tuple(name for name in descriptor.dtypes if name in RIGHT)
    return msgspec.structs.replace(descriptor, devices=("cpu",), dtypes=dtypes)


class TestKit(SelectedLogprobContract):
    """What the kernel of the logits claims."""

    descriptor = here(TRITON)
    long_vocabulary: ClassVar[int] = 4099
    cost_shape: ClassVar[tuple[int, int]] = (4, 512)


class Linear(LinearSelectedLogprobContract):
    """Sizes that the interpreter gets through."""

    __test__ = False
    depths: ClassVar[tuple[int, ...]] = (8, 40)
    long_shape: ClassVar[tuple[int, int]] = (515, 40)
    cost_shape: ClassVar[tuple[int, int, int]] = (4, 512, 40)


class TestBlocks(Linear):
    """What the blocks claim, in blocks of their own size."""

    __test__ = True
    descriptor = here(BLOCKS)


class TestTiles(Linear):
    """What the tiles claim, in tiles of their own size."""

    __test__ = True
    descriptor = here(TILES)


@pytest.mark.parametrize(("backend", "dtype"), cases(INTERPRETED, RIGHT), ids=named)
@pytest.mark.parametrize("columns", VOCABULARIES)
def test_hard_rows(backend, dtype, columns):
    """Failing means a value or a gradient that is not the formula's, on rows that every backend is held to."""
    check_values(backend, columns, dtype)
    check_gradients(backend, columns, dtype)


@pytest.mark.parametrize("columns", VOCABULARIES)
@pytest.mark.parametrize("plan", [kernel.DEFAULT, SMALL])
def test_values_and_gradients(columns, plan):
    """Failing means that a value or a gradient is not that of the float64 formula."""
    logits, ids = hard_logits(16, columns, torch.float32, "cpu").requires_grad_(), ids_for(16, columns, "cpu")
    found = triton_logits.evaluate(logits, ids, entropy=True, plan=plan)
    wide = logits.detach().double().requires_grad_()
    want = three(wide, ids)
    top = wide.detach().amax(-1).abs()
    for mine, theirs, scale in zip(found, want, (want[0].abs(), want[1].abs() + top, 4 + want[2]), strict=True):
        close(mine.detach(), theirs.detach(), scale.detach())
    slopes = torch.randn(3, 16)
    keep = want[0].detach().isfinite()
    slopes[0] *= keep
    (mine,) = gradients([torch.where(keep, found[0], 0.0), *found[1:]], slopes, (logits,))
    (theirs,) = gradients([torch.where(keep, want[0], 0.0), *want[1:]], slopes, (wide,))
    size = slopes.abs().sum(0)[:, None] * (1 + wide.detach().abs().amax(-1, keepdim=True).clamp_max(1e4))
    close(mine, theirs.nan_to_num(0), size.expand_as(theirs))


def test_one_output_alone_has_the_right_gradient():
    """Failing means that an output which nobody used adds to the gradient, or an expanded gradient is misread."""
    logits, ids = hard_logits(3, 500, torch.float32, "cpu").requires_grad_(), ids_for(3, 500, "cpu")
    wide = logits.detach().double().requires_grad_()
    for index in range(3):
        mine = torch.autograd.grad(triton_logits.evaluate(logits, ids, entropy=True)[index].sum(), logits)[0]
        theirs = torch.autograd.grad(three(wide, ids)[index].sum(), wide)[0]
        close(mine, theirs, torch.full_like(theirs, 64))


def test_no_distribution_is_nan_in_its_row_alone():
    """Failing means that NaN, +inf or a row of -inf gives a number."""
    logits, ids = torch.randn(5, 40), torch.tensor([1, 2, 3, 4, 5])
    logits[0, 7], logits[1, 2], logits[2] = torch.nan, torch.inf, -torch.inf
    logits[3, 4] = -torch.inf
    found = triton_logits.evaluate(logits, ids).logprob
    assert found.isnan().tolist() == [True, True, True, False, False]
    assert found[3] == -torch.inf


def test_ignored_rows():
    """Failing means that an ignored id is scored, or pulls at its logits."""
    logits, ids = torch.randn(4, 33, requires_grad=True), torch.tensor([3, -100, 5, -100])
    found = triton_logits.evaluate(logits, ids, ignore_index=-100).logprob
    assert found.isnan().tolist() == [False, True, False, True]
    (grad,) = torch.autograd.grad(found[~found.isnan()].sum(), logits)
    assert (grad[[1, 3]] == 0).all()
    assert (grad[[0, 2]] != 0).any()
    with pytest.raises(IdentityError):
        triton_logits.evaluate(logits, ids)
    with pytest.raises(UsageError):
        triton_logits.evaluate(logits.double(), ids.clamp_min(0))


def test_bits_do_not_know_the_batch_and_a_planted_order_is_seen():
    """Failing means that the claim of invariance is false, or that this test could not see it."""
    logits, ids = torch.randn(12, 512, generator=torch.Generator().manual_seed(3)), ids_for(12, 512, "cpu")
    whole = kernel.forward(logits, ids, entropy=True, plan=SMALL)
    for first, count, split in ((0, 1, True), (11, 1, False), (5, 7, True), (3, 4, False)):
        part = slice(first, first + count)
        got = kernel.forward(logits[part], ids[part], entropy=True, plan=SMALL, split=split)
        assert all(same_bits(left[part], right) for left, right in zip(whole, got, strict=True))
    other = kernel.forward(logits, ids, entropy=True, plan=dataclasses.replace(SMALL, tile_rows=1, tile_columns=64))
    assert sum(moved(left, right) for left, right in zip(whole, other, strict=True)) > 0


def head(rows: int, columns: int, depth: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """hidden, weight, ids."""
    generator = torch.Generator().manual_seed(rows * columns)
    hidden, weight = torch.randn(rows, depth, generator=generator), torch.randn(columns, depth, generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), ids_for(rows, columns, "cpu")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 2), (4, 500), (19, 600)])
def test_head_against_float64(form, rows, columns):
    """Failing means that head and log probability in one are not the product followed by the formula.

    600 columns are more tiles of 16 than the merge has lanes; 4 rows are one block, 19 several and a ragged one.
    """
    hidden, weight, ids = head(rows, columns)
    found = fused.evaluate(hidden, weight, ids, form=FORMS[form], backward=BACKWARD, entropy=True)
    for mine, theirs in zip(found, reference(hidden, weight, ids), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs, rtol=2e-6, atol=4e-6)
    slopes = torch.randn(3, rows)
    h64, w64 = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    want = gradients(three(h64 @ w64.t(), ids), slopes, (h64, w64))
    for mine, theirs in zip(gradients(found, slopes, (hidden, weight)), want, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
def test_head_leaves_out_what_nobody_wants(form):
    """Failing means that a frozen head gets a gradient, or that ignored rows do."""
    hidden, weight, ids = head(6, 70)
    ids[2] = -7
    found = fused.evaluate(hidden, weight.detach(), ids, form=FORMS[form], backward=BACKWARD, ignore_index=-7)
    assert found.logprob.isnan().tolist() == [False, False, True, False, False, False]
    (grad,) = torch.autograd.grad(found.logprob.nansum(), hidden)
    assert (grad[2] == 0).all()
    assert (grad[3] != 0).all()
    with pytest.raises(IdentityError):
        fused.evaluate(hidden, weight, ids, form=FORMS[form])


def test_tiles_do_not_know_the_batch_and_a_planted_order_is_seen():
    """Failing means that the merge of a row's tiles knows the other rows, or that this test could not see it."""
    hidden, weight, ids = (item.detach() for item in head(33, 600))
    whole = linear_tile.forward(hidden, weight, ids, entropy=True, tiles=FORMS["tiles"])
    for first, count in ((0, 1), (16, 16), (3, 21), (32, 1)):
        part = slice(first, first + count)
        got = linear_tile.forward(hidden[part], weight, ids[part], entropy=True, tiles=FORMS["tiles"])
        assert all(same_bits(left[part], right) for left, right in zip(whole, got, strict=True))
    other = linear_tile.forward(hidden, weight, ids, tiles=dataclasses.replace(FORMS["tiles"], columns=32))
    assert moved(whole.lse, other.lse) + moved(whole.logp, other.logp)


@pytest.mark.parametrize("descriptor", [BLOCKS, TILES], ids=lambda item: item.backend_id)
def test_registered_forms_run(descriptor):
    """Failing means that the factory of the descriptor does not build what it says, or takes no empty batch."""
    from xcfg.plugin.operators import load_factory

    operator = load_factory(descriptor.factory)()
    assert operator(torch.empty(0, 16), torch.randn(8, 16), torch.empty(0, dtype=torch.int64)).shape == (0,)
    with pytest.raises(UsageError, match="one floating dtype"):
        operator(torch.zeros(1, 16), torch.zeros(8, 16).half(), torch.zeros(1, dtype=torch.int64))


def test_tiles_refuse_a_depth_that_the_copy_engine_cannot_take():
    """Failing means a crash inside the kernel where a sentence was due."""
    with pytest.raises(UsageError, match="16 bytes"):
        fused.evaluate(torch.zeros(1, 3), torch.zeros(8, 3), torch.zeros(1, dtype=torch.int64), form=FORMS["tiles"])

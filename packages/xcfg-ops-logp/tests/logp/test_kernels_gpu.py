"""The Triton kernels and Liger on a card: every dtype and vocabulary, gradients, bits across batches, memory."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from typing import ClassVar

import pytest
import torch
from hard_rows import VOCABULARIES, backends, cases, check_gradients, check_values, named
from oracle64 import close, gradients, hard_logits, ids_for, moved, same_bits, three
from xcfg.plugin.operators import load_factory
from xcfg_ops_logp.kernel_backends import BLOCKS, LIGER, TILES, TORCH, TRITON
from xcfg_ops_logp.linear.reference import reference
from xcfg_testkit import LinearSelectedLogprobContract, SelectedLogprobContract

pytestmark = pytest.mark.gpu
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
PARTS = ((0, 1), (1023, 1), (77, 7), (0, 128), (300, 129), (3, 1000), (512, 512), (1, 1023))
"""(first, count) of 1,024 rows: counts that are multiples of 16 and that are not, at places that are and are not."""

LINEAR = [TORCH, BLOCKS, TILES, LIGER]
ORACLES = cases(backends(device="cuda"))
INTERPRETED = (TRITON, BLOCKS, TILES)
"""What triton_cases.py holds to the same rows in the interpreter."""
NO_LIGER = pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="liger-kernel is not installed")


def installed(found):
    """Return the cases, those of Liger skipped where it is not installed."""
    return [pytest.param(*item, marks=NO_LIGER if item[0] is LIGER else ()) for item in found]


def each(*found):
    """Return single backends as `installed` takes them."""
    return installed((item,) for item in found)


@pytest.fixture(autouse=True)
def _kernels():
    if importlib.util.find_spec("triton") is None:
        pytest.fail("there is a card, and triton is not installed: pip install 'xcfg-ops-logp[triton]'")


class TestTriton(SelectedLogprobContract):
    """Everything that the backend declares, on every dtype."""

    descriptor = TRITON
    long_vocabulary: ClassVar[int] = 151_936


class Linear(LinearSelectedLogprobContract):
    """A head of a size that a library splits, and depths that are a multiple of 16 bytes, as the tiles ask."""

    __test__ = False
    depths: ClassVar[tuple[int, ...]] = (8, 40)
    long_shape: ClassVar[tuple[int, int]] = (49_157, 512)


class TestBlocks(Linear):
    """Everything that the blocks declare; they take any depth."""

    __test__ = True
    descriptor = BLOCKS
    depths: ClassVar[tuple[int, ...]] = (1, 3, 40)


class TestTiles(Linear):
    """Everything that the tiles declare."""

    __test__ = True
    descriptor = TILES


@pytest.fixture(scope="module")
def liger():
    """Import Liger before the guard looks: its import sets variables of OpenMP and draws from a generator."""
    importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")


@NO_LIGER
@pytest.mark.usefixtures("liger")
class TestLiger(Linear):
    """What Liger declares of itself."""

    __test__ = True
    descriptor = LIGER
    depths: ClassVar[tuple[int, ...]] = (1, 3, 40)


@pytest.mark.parametrize(("backend", "dtype"), installed(ORACLES), ids=named)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_hard_rows(backend, dtype, vocabulary):
    """Failing means a value or a gradient that is not the formula's, on rows that a CPU's backends are held to too."""
    check_values(backend, vocabulary, dtype, "cuda")
    check_gradients(backend, vocabulary, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", VOCABULARIES)
def test_values_and_gradients(dtype, columns):
    """Failing means that a value or a gradient is not that of the float64 formula on the same logits."""
    from xcfg_ops_logp import triton_logits

    rows = 64
    logits = hard_logits(rows, columns, dtype, "cuda").requires_grad_()
    ids = ids_for(rows, columns, "cuda")
    found = triton_logits.evaluate(logits, ids, entropy=True)
    wide = logits.detach().double().requires_grad_()
    want = three(wide, ids)
    top = wide.detach().amax(-1).abs()
    for mine, theirs, scale in zip(found, want, (want[0].abs(), want[1].abs() + top, 4 + want[2]), strict=True):
        close(mine.detach(), theirs.detach(), scale.detach())
    slopes = torch.randn(3, rows, device="cuda")
    keep = want[0].detach().isfinite()
    (mine,) = gradients([torch.where(keep, found[0], 0.0), *found[1:]], slopes, (logits,))
    (theirs,) = gradients([torch.where(keep, want[0], 0.0), *want[1:]], slopes, (wide,))
    theirs = theirs.nan_to_num(0)
    size = slopes.abs().sum(0)[:, None] * (8 + 2 * top[:, None].clamp_max(1e4))
    tiny = 2.0**-25 if dtype == torch.float16 else 0.0
    bound = torch.finfo(dtype).eps * theirs.abs() + 2.0**-20 * size + tiny
    assert ((mine.double() - theirs).abs() <= bound).all()


@pytest.mark.parametrize(("dtype", "columns"), [(torch.bfloat16, 151_936), (torch.bfloat16, 151_643), *(
    (dtype, 49_152) for dtype in DTYPES
)], ids=str)  # fmt: skip
def test_bits_of_a_row_do_not_know_the_batch(dtype, columns):
    """Failing means that the number of rows, their place, their alignment or the launch moves a bit; or blindness."""
    from xcfg_ops_logp.kernels import selected as kernel

    logits, ids = hard_logits(1024, columns, dtype, "cuda"), ids_for(1024, columns, "cuda")
    whole = kernel.forward(logits, ids, entropy=True)
    for first, count in PARTS:
        part = slice(first, first + count)
        for split in (True, False):
            got = kernel.forward(logits[part], ids[part], entropy=True, split=split)
            assert all(same_bits(left[part], right) for left, right in zip(whole, got, strict=True)), (part, split)
    other = kernel.forward(logits, ids, entropy=True, plan=dataclasses.replace(kernel.DEFAULT, tile_rows=4))
    assert sum(moved(left, right) for left, right in zip(whole, other, strict=True)) > 0


def head(rows: int, columns: int, depth: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """hidden, weight, ids; logits of standard deviation about 3."""
    generator = torch.Generator(device="cuda").manual_seed(rows + columns)
    hidden = torch.randn(rows, depth, device="cuda", generator=generator).to(dtype)
    weight = (torch.randn(columns, depth, device="cuda", generator=generator) * 3 / depth**0.5).to(dtype)
    return hidden, weight, ids_for(rows, columns, "cuda")


def allowed(logp: torch.Tensor, lse: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half a unit of every logit where they are rounded, and float32 sums over K and V."""
    half = torch.finfo(dtype).eps / 2
    return half * (2 * lse.abs() + logp.abs() + 8) + 2.0**-13


@pytest.mark.parametrize("columns", VOCABULARIES)
@pytest.mark.parametrize(("backend", "dtype"), installed(cases(LINEAR)), ids=named)
def test_head_against_float64(backend, dtype, columns):
    """Failing means that the product, the merge of its parts, or the selected logit is wrong."""
    hidden, weight, ids = head(48, columns, 512, getattr(torch, dtype))
    found = load_factory(backend.factory)()(hidden, weight, ids)
    want = reference(hidden, weight, ids)
    error = (found.double() - want.logprob).abs()
    assert (error <= allowed(want.logprob, want.logsumexp, hidden.dtype)).all(), float(error.max())


def test_tiles_that_do_not_round_are_closer():
    """Failing means that `downcast_at` does nothing, or that float32 logits are lost on the way."""
    hidden, weight, ids = head(64, 151_936, 1024, torch.bfloat16)
    want = reference(hidden, weight, ids).logprob
    errors = {
        where: (load_factory(TILES.factory)(downcast_at=where)(hidden, weight, ids).double() - want).abs().max()
        for where in ("logits", "never")
    }
    assert errors["never"] < 2.0**-11
    assert errors["logits"] > 2.0**-9


@pytest.mark.parametrize("backend", [BLOCKS, TILES], ids=named)
@pytest.mark.parametrize("columns", [151_936, 151_643])
def test_bits_of_a_row_of_the_head_do_not_know_the_batch(backend, columns):
    """Failing means that the claim of invariance is false: the number of rows or their place moves a bit."""
    from xcfg_ops_logp.kernels import linear, linear_tile
    from xcfg_ops_logp.linear import fused

    form = linear.DEFAULT if backend is BLOCKS else linear_tile.DEFAULT
    hidden, weight, ids = head(1024, columns, 1024, torch.bfloat16)
    whole = fused.evaluate(hidden, weight, ids, form=form, entropy=True)
    differing = {}
    for first, count in PARTS:
        part = slice(first, first + count)
        got = fused.evaluate(hidden[part], weight, ids[part], form=form, entropy=True)
        differing[first, count] = [moved(left[part], right) for left, right in zip(whole, got, strict=True)]
    order = torch.randperm(1024, device="cuda")
    got = fused.evaluate(hidden[order], weight, ids[order], form=form, entropy=True)
    differing["permuted"] = [moved(left[order], right) for left, right in zip(whole, got, strict=True)]
    assert {where: count for where, count in differing.items() if any(count)} == {}
    larger = fused.evaluate(hidden.repeat(5, 1), weight, ids.repeat(5), form=form, entropy=True)
    assert all(same_bits(left.repeat(5), right) for left, right in zip(whole, larger, strict=True))


def test_another_tile_moves_bits_of_the_head():
    """Failing means that the test above could not see a change of order."""
    from xcfg_ops_logp.kernels import linear_tile

    hidden, weight, ids = head(256, 151_936, 1024, torch.bfloat16)
    one = linear_tile.forward(hidden, weight, ids)
    other = linear_tile.forward(hidden, weight, ids, tiles=linear_tile.Tiles(columns=128, warps=4, stages=4))
    assert moved(one.lse, other.lse) + moved(one.log_total, other.log_total) > 0


@pytest.mark.parametrize("backend", [BLOCKS, TILES], ids=named)
def test_gradients_of_the_head_are_as_close_as_autograd(backend):
    """Failing means an error of its own in the backward: torch on full logits rounds at the same places.

    Both round the logits and their gradient to bfloat16; those roundings are nearly all of either error. A tenth more
    is left for products whose sums are rounded elsewhere.
    """
    from xcfg_ops_logp.kernels import linear, linear_tile
    from xcfg_ops_logp.linear import fused

    hidden, weight, ids = head(5000, 5003, 256, torch.bfloat16)
    slopes = torch.randn(3, 5000, device="cuda")
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    form = linear.DEFAULT if backend is BLOCKS else linear_tile.DEFAULT
    mine = gradients(fused.evaluate(*leaves, ids, form=form, entropy=True), slopes, leaves)
    peer = gradients(three((hidden @ weight.t()).float(), ids), slopes, leaves)
    wide = [item.detach().double().requires_grad_() for item in leaves]
    want = gradients(three(wide[0] @ wide[1].t(), ids), slopes, wide)
    for ours, theirs, exact in zip(mine, peer, want, strict=True):
        error, other = ((item.double() - exact).norm() / exact.norm() for item in (ours, theirs))
        assert error <= 1.1 * other, (float(error), float(other))


@pytest.mark.parametrize("backend", [BLOCKS, TILES], ids=named)
def test_memory_of_the_head_is_bounded(backend):
    """Failing means that logits of the whole vocabulary exist for more rows than a block: 2,374 MiB for these."""
    hidden, weight, ids = head(4096, 151_936, 512, torch.bfloat16)
    operator = load_factory(backend.factory)()
    operator(hidden, weight, ids)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    operator(hidden, weight, ids)
    assert torch.cuda.max_memory_allocated() - before < 100 * 2**20


@pytest.mark.parametrize("backend", each(*LINEAR), ids=named)
def test_run_to_run(backend):
    """Failing means that two calls on the same inputs differ in a bit."""
    hidden, weight, ids = head(700, 49_152, 512, torch.bfloat16)
    operator = load_factory(backend.factory)()
    first = operator(hidden, weight, ids)
    assert all(same_bits(first, operator(hidden, weight, ids)) for _ in range(4))

"""`linear_selected_logprob` in float64 and in torch's arithmetic, against the product and formula written out."""

from __future__ import annotations

import importlib.util
import sys

import mpmath
import pytest
import torch
from oracle64 import gradients, three
from xcfg.errors import IdentityError, MissingDependencyError, UsageError
from xcfg_ops_logp.kernel_backends import LINEAR_REFERENCE, TORCH
from xcfg_ops_logp.linear import chunked, liger
from xcfg_ops_logp.linear import reference as module
from xcfg_testkit import LinearSelectedLogprobContract


class TestReference(LinearSelectedLogprobContract):
    """Every declared dtype and claim of the reference, bounded by the precision of float64."""

    descriptor = LINEAR_REFERENCE
    compute_dtype = "float64"
    rounds_logits = False


class TestTorch(LinearSelectedLogprobContract):
    """Torch's arithmetic, which rounds logits to the dtype of the weights."""

    descriptor = TORCH


def case(rows, columns, depth, dtype=torch.float64):
    """hidden, weight, ids; seeded."""
    generator = torch.Generator().manual_seed(rows + 17 * columns + 101 * depth)
    hidden = torch.randn(rows, depth, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(columns, depth, generator=generator, dtype=torch.float64).to(dtype)
    return hidden, weight, torch.randint(0, columns, (rows,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 1, 1), (5, 2, 3), (7, 33, 8)])
def test_reference_against_sixty_digits(dtype, rows, columns, depth):
    """If this fails, the head in the reference is not hidden times weight transposed, or rounds its inputs."""
    hidden, weight, ids = case(rows, columns, depth, dtype)
    found = module.build(chunk_rows=3)(hidden, weight, ids)
    assert found.dtype == torch.float64
    for row in range(rows):
        with mpmath.workdps(60):
            h = [mpmath.mpf(v) for v in hidden[row].double().tolist()]
            logits = [
                mpmath.fsum(a * mpmath.mpf(b) for a, b in zip(h, w.double().tolist(), strict=True)) for w in weight
            ]
            want = float(logits[ids[row]] - mpmath.log(mpmath.fsum(mpmath.exp(x) for x in logits)))
        assert found[row].item() == pytest.approx(want, rel=1e-14, abs=1e-14)


def test_parts_of_the_vocabulary_are_joined_in_their_place(monkeypatch):
    """If this fails, a vocabulary longer than one part is scored against the wrong columns."""
    hidden, weight, ids = case(6, 50, 4)
    want = module.reference(hidden, weight, ids)
    monkeypatch.setattr(module, "PART", 7)
    for whole, parts in zip(want, module.reference(hidden, weight, ids), strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("chunk_rows", [1, 4, 512])
def test_torch_in_blocks_has_the_gradients_of_one_block(chunk_rows):
    """If this fails, a block is scored with another block's ids, or its gradient is lost."""
    hidden, weight, ids = case(10, 40, 6)
    leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    found = chunked.build(chunk_rows=chunk_rows)(*leaves, ids)
    torch.testing.assert_close(found.detach(), module.reference(hidden, weight, ids).logprob, rtol=1e-13, atol=1e-13)
    wide = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    slope = torch.randn(10, dtype=torch.float64)
    want = gradients(three(wide[0] @ wide[1].t(), ids)[:1], (slope,), wide)
    for mine, theirs in zip(torch.autograd.grad(found, leaves, slope), want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_torch_keeps_one_block_of_logits(monkeypatch):
    """If this fails, the blocks bound nothing: all logits are kept for the backward."""
    hidden, weight, ids = case(64, 500, 4, torch.float32)
    kept: list[int] = []

    def pack(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        chunked.build(chunk_rows=8)(hidden.requires_grad_(), weight.requires_grad_(), ids)
    assert max(kept, default=0) <= weight.numel()
    assert sum(kept) < 64 * 500


@pytest.mark.parametrize("build", [module.build, chunked.build])
def test_ignored_ids_and_refusals(build):
    """If this fails, an ignored row is scored, or inputs that do not fit are scored as if they did."""
    hidden, weight, ids = case(4, 9, 3)
    ids[1] = -100
    found = build(ignore_index=-100)(hidden, weight, ids)
    assert found.isnan().tolist() == [False, True, False, False]
    assert build()(hidden[:0], weight, ids[:0]).shape == (0,)
    with pytest.raises(IdentityError, match="outside the vocabulary of 9"):
        build()(hidden, weight, ids)
    for bad in ((hidden[:, :2], weight), (hidden, weight.float()), (hidden[0], weight), (hidden, weight[:0])):
        with pytest.raises(UsageError, match="hidden is"):
            build()(*bad, ids)
    with pytest.raises(UsageError, match="int64"):
        build()(hidden, weight, ids.int())
    with pytest.raises(UsageError, match="chunk_rows"):
        build(chunk_rows=0)


def test_no_rows_have_a_gradient():
    """If this fails, a rank without tokens crashes."""
    hidden, weight, ids = case(0, 9, 3)
    found = chunked.build()(hidden.requires_grad_(), weight, ids)
    assert found.shape == (0,)
    assert found.dtype == torch.float64


def test_liger_says_what_to_install(monkeypatch):
    """If this fails, a person without Liger gets a traceback instead of the command."""
    for name in [item for item in sys.modules if item.partition(".")[0] == "liger_kernel"] or ["liger_kernel"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match="liger-kernel") as caught:
        liger.build()
    assert "xcfg-ops-logp[liger]" in caught.value.hint


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="without triton the import itself refuses")
def test_triton_without_a_card_is_refused():
    """If this fails, a CPU tensor reaches a kernel and the error is Triton's."""
    from xcfg_ops_logp import triton_logits
    from xcfg_ops_logp.linear import fused

    ids = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(UsageError, match="CUDA device"):
        triton_logits.build()(torch.zeros(1, 4), ids)
    for build in (fused.build_blocks, fused.build_tiles):
        with pytest.raises(UsageError, match="CUDA device"):
            build()(torch.zeros(1, 8), torch.zeros(4, 8), ids)
    with pytest.raises(UsageError, match="downcast_at"):
        fused.build_tiles(downcast_at="result")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="without triton the import itself refuses")
def test_the_default_form_is_one_that_runs():
    """If this fails, a depth or dtype that the tiles refuse is given to them, or the slower form where they run."""
    from xcfg_ops_logp.kernels.linear_tile import Tiles
    from xcfg_ops_logp.linear.fused import default_form

    def tiled(dtype, depth, capability):
        return isinstance(default_form(dtype, depth, capability), Tiles)

    assert tiled(torch.bfloat16, 4096, (9, 0)) and tiled(torch.float16, 8, (10, 0))
    assert not tiled(torch.bfloat16, 4100, (9, 0)), "a row is no multiple of 16 bytes"
    assert not tiled(torch.float32, 4096, (9, 0)), "the tiles take no float32"
    assert not tiled(torch.bfloat16, 4096, (8, 0)), "measured on no card before Hopper"
    assert not tiled(torch.bfloat16, 4096, None)

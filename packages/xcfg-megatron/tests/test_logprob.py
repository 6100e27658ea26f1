"""The vocab-parallel log probability against float64, shard by shard."""

from __future__ import annotations

import math

import pytest
import torch
from xcfg_megatron.logprob import VocabParallel


def expected(logits, selected):
    return logits.double().log_softmax(-1).gather(-1, selected[:, None])[:, 0]


def test_one_rank_is_log_softmax_and_gather():
    torch.manual_seed(0)
    logits, selected = torch.randn(64, 500) * 8, torch.randint(0, 500, (64,))
    assert torch.allclose(VocabParallel()(logits, selected).double(), expected(logits, selected), rtol=0, atol=4e-6)


def test_padded_columns_take_no_part():
    torch.manual_seed(0)
    logits, selected = torch.randn(8, 512) * 4, torch.randint(0, 500, (8,))
    operator = VocabParallel()
    operator.vocab = 500
    found = operator(logits, selected).double()
    assert torch.allclose(found, expected(logits[:, :500], selected), rtol=0, atol=4e-6)
    assert float((VocabParallel()(logits, selected).double() - found).abs().max()) > 1e-3, "padding would have shown"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_logits_are_widened_first(dtype):
    torch.manual_seed(0)
    logits, selected = (torch.randn(16, 512) * 4).to(dtype), torch.randint(0, 512, (16,))
    found = VocabParallel()(logits, selected)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), expected(logits, selected), rtol=0, atol=4e-6)


def test_what_was_summed_is_said():
    """If this fails, the columns that a score reports are those that were asked for, not those that were summed."""
    logits, selected = torch.zeros(2, 512), torch.tensor([0, 499])
    operator = VocabParallel()
    operator.vocab = 500
    masked = operator(logits, selected)
    assert operator.summed == 500
    operator.vocab = None
    included = operator(logits, selected)
    assert operator.summed == 512
    assert masked.tolist() == pytest.approx([-math.log(500)] * 2) and included.tolist() == pytest.approx(
        [-math.log(512)] * 2
    )


def test_a_shard_that_lies_wrong_sums_other_columns_than_were_asked_for():
    """If this fails, what is said to be summed repeats the policy: here 100 columns too many are hidden."""
    operator = VocabParallel()
    operator.vocab = 500
    operator.place(None, 100)
    operator(torch.zeros(2, 512), torch.tensor([101, 499]))
    assert operator.summed == 400


def test_logits_are_left_as_they_were():
    """If this fails, hiding the padded columns changes the logits that the next operator reads."""
    logits = torch.randn(3, 512)
    kept = logits.clone()
    operator = VocabParallel()
    operator.vocab = 500
    operator(logits, torch.tensor([1, 2, 3]))
    assert torch.equal(logits, kept)

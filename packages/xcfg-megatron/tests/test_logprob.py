"""The vocab-parallel log probability against float64, shard by shard."""

from __future__ import annotations

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

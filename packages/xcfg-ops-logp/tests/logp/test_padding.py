"""The disagreement of Megatron and vLLM on padded shards, its reconciliation, and what a policy difference costs."""

from __future__ import annotations

import pytest
import torch
from xcfg.schema.codec import evolve
from xcfg_ops_logp.contract import (
    BackendCapability,
    LogProbContract,
    ShardingSpec,
    VocabSpec,
    bind_logprob,
    common_tiles,
    contract_faults,
    megatron_shards,
    real_shards,
    reference_contract,
    vllm_shards,
)
from xcfg_ops_logp.reference import selected_logprob

CASES = {  # real, divisor of Megatron, ranks -> boundary of rank 1 in Megatron and in vLLM, padded sizes
    (500, 128, 2): (256, 256, 512, 512),
    (500, 384, 2): (384, 256, 768, 512),
    (151_936, 128, 2): (76_032, 75_968, 152_064, 151_936),
}


def contract(org: int, shards, policy: str = "mask") -> LogProbContract:
    """The contract of a side with these padded shards."""
    padded = shards[-1][1]
    return evolve(
        reference_contract(vocab_size=org, head_dtype="float64", rows=3),
        vocab=VocabSpec(
            org_vocab_size=org, padded_vocab_size=padded, num_pad_rows=padded - org, vocab_padding_policy=policy
        ),
        sharding=ShardingSpec(vocab_shard_map=real_shards(shards, org), padded_shard_map=shards),
        capability=BackendCapability(tp_size=len(shards)),
    )


def head(org: int, padded: int, rows: int = 3) -> torch.Tensor:
    """float64 logits [rows, padded] whose padded columns are 0, as those of zero rows of a head are."""
    generator = torch.Generator().manual_seed(org)
    logits = torch.zeros(rows, padded, dtype=torch.float64)
    logits[:, :org] = 3 * torch.randn(rows, org, dtype=torch.float64, generator=generator)
    return logits


def partials(logits: torch.Tensor, ranges) -> list[torch.Tensor]:
    """The log-sum-exp of each range, [rows] each."""
    return [logits[:, start:stop].logsumexp(-1) for start, stop in ranges]


@pytest.mark.parametrize("case", CASES)
def test_the_engines_disagree_on_shards_and_agree_on_tiles(case):
    """If this fails, the shard map does not reconcile what it is there for."""
    org, divisor, ranks = case
    cut, other_cut, padded, other_padded = CASES[case]
    ours, theirs = megatron_shards(org, ranks, divisor), vllm_shards(org, ranks)
    assert (ours[1][0], theirs[1][0], ours[-1][1], theirs[-1][1]) == (cut, other_cut, padded, other_padded)
    logits = head(org, max(padded, other_padded))
    first, second = real_shards(ours, org), real_shards(theirs, org)
    apart = [not torch.equal(*pair) for pair in zip(partials(logits, first), partials(logits, second), strict=True)]
    assert apart == [cut != other_cut] * ranks, "partials of different boundaries are sums of different ids"
    tiles = common_tiles(first, second)
    assert [tile.start for tile in tiles] == sorted({0, cut, other_cut})
    for tile in tiles:
        mine, other = first[tile.first_rank], second[tile.second_rank]
        shared = [shard[0] <= tile.start and tile.stop <= shard[1] for shard in (mine, other)]
        assert shared == [True, True]
    merged = torch.stack(partials(logits, [(tile.start, tile.stop) for tile in tiles])).logsumexp(0)
    assert (merged - logits[:, :org].logsumexp(-1)).abs().max() < 1e-13


@pytest.mark.parametrize("case", CASES)
def test_other_boundaries_of_one_vocabulary_are_comparable(case):
    """If this fails, Megatron and vLLM are never compared, or the boundaries are not recorded."""
    org, divisor, ranks = case
    first = contract(org, megatron_shards(org, ranks, divisor))
    second = contract(org, vllm_shards(org, ranks))
    assert contract_faults(first) == contract_faults(second) == ()
    found = bind_logprob(first, second)
    assert found.comparable, found.reason
    cut, other_cut, padded, other_padded = CASES[case]
    moved = ["sharding.vocab_shard_map"] if cut != other_cut else []
    grown = ["vocab.padded_vocab_size", "vocab.num_pad_rows"] if padded != other_padded else []
    assert [item.path for item in found.recorded] == [*grown, *moved, *(["sharding.padded_shard_map"] if grown else [])]
    assert bind_logprob(first, contract(org, vllm_shards(org, 1))).comparable, "and another number of ranks"


@pytest.mark.parametrize(("org", "padded"), [(500, 512), (500, 768), (151_936, 152_064)])
def test_an_included_padding_is_the_bias_that_its_columns_predict(org, padded):
    """If this fails, the gap between include and mask has another cause than the padded columns."""
    logits = head(org, padded)
    ids = torch.tensor([0, org // 2, org - 1])
    masked = selected_logprob(logits[:, :org].contiguous(), ids)
    included = selected_logprob(logits, ids)
    predicted = -torch.log1p((padded - org) * torch.exp(-logits[:, :org].logsumexp(-1)))
    assert (included - masked - predicted).abs().max() < 1e-12
    assert (included < masked).all(), "padding takes probability from every id"


def test_a_policy_difference_is_measured_when_declared_and_refused_when_not():
    """If this fails, a padded vocabulary is taken for drift, or the axis cannot be measured."""
    shards = megatron_shards(500, 2)
    include, mask = contract(500, shards, "include"), contract(500, shards)
    found = bind_logprob(include, mask)
    assert (found.status, [item.path for item in found.refusals]) == ("NOT_COMPARABLE", ["vocab.vocab_padding_policy"])
    assert "'include'" in found.reason and "'mask'" in found.reason and "declare the difference" in found.reason
    for knob in ("logprob.vocab_padding_policy@training", "training.vocab_padding_policy"):
        declared = bind_logprob(include, mask, knobs=[knob])
        assert declared.comparable
        assert [item.path for item in declared.measured] == ["vocab.vocab_padding_policy"]
    assert not bind_logprob(include, mask, knobs=["logprob.accum_dtype"]).comparable


def test_another_vocabulary_is_refused_however_it_is_split():
    """If this fails, two checkpoints with different vocabularies are compared because both are padded to 512."""
    found = bind_logprob(contract(500, vllm_shards(500, 2)), contract(501, vllm_shards(501, 2)))
    assert [item.path for item in found.refusals] == ["vocab.org_vocab_size", "sharding.vocab_shard_map"]

"""Vocab-parallel backends of another package in a real engine of two ranks: local logits, their place, their bits."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from xcfg.plugin.operators import load_factory

PADDED, REAL = 512, 500
FACTORIES = {
    "xcfg.tp_tree_logp": "xcfg_ops_logp.sharded.tree:Tree",
    "xcfg.allgather_logits_logp": "xcfg_ops_logp.sharded.gathered:AllGatherLogits",
    "xcfg.fixed_point_logp": "xcfg_ops_logp.sharded.fixed_point:FixedPoint",
}
OTHERS = ("xcfg.allreduce_partials_logp", "xcfg.allgather_partials_logp", "xcfg.slime_vocab_parallel_logp")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("megatron") is None, reason="Megatron-core is not installed"),
]


@pytest.fixture(scope="module")
def answers(lab, job):
    """Two ranks, one job for each backend, padded vocabulary; the native backend beside them."""
    two = {"training.tensor_parallel_size": 2}
    jobs = [job("native", two, vocabulary=REAL)]
    jobs += [
        job(name, {**two, "logp.backend": name}, vocabulary=REAL, keep_logits=True) for name in (*FACTORIES, *OTHERS)
    ]
    include = {**two, "logp.backend": "xcfg.tp_tree_logp", "training.vocab_padding_policy": "include"}
    jobs.append(job("include", include, vocabulary=REAL, keep_logits=True))
    return lab.run(jobs, world=2)


@pytest.mark.parametrize("name", [*FACTORIES, *OTHERS])
def test_it_is_handed_local_logits_and_read_back(answers, name):
    """If this fails, the backend was given gathered logits or was not called, and its topology was not measured."""
    for rank in answers:
        answer = rank[name]
        item = answer.knob("logp.backend")
        assert (item["status"], item["actual"], item["exercised"]) == ("applied", name, "yes")
        assert answer.said["report"]["counters"]["operator.selected_logprob"] == 8
        assert answer.said["report"]["mechanism"]["vocabulary"]["policy"] == "mask"
        assert answer.columns["kept_logits"].shape == (len(answer.values), PADDED // 2)
        assert torch.equal(answer.values, answer.columns["kept_values"].float())
    first, second = (rank[name] for rank in answers)
    assert not torch.equal(first.columns["kept_logits"], second.columns["kept_logits"])
    assert torch.equal(first.values, second.values)
    gap = (first.values - answers[0]["native"].values).abs().max()
    assert float(gap) <= 4e-6, "another sum than Megatron's own"


def test_each_rank_says_which_ids_its_head_holds(answers):
    """If this fails, the gate over ownership is told of shards or head rows that the live model does not have."""
    said = [rank["xcfg.tp_tree_logp"].said["report"]["mechanism"] for rank in answers]
    assert [item["vocabulary_shard"] for item in said] == [[0, PADDED // 2], [PADDED // 2, PADDED]]
    assert [item["head_padding"] for item in said] == [
        {"rows": 0, "largest_norm": 0.0},
        {"rows": PADDED - REAL, "largest_norm": 0.0},
    ]


@pytest.mark.parametrize("name", FACTORIES)
def test_two_ranks_have_the_bits_of_one_on_the_same_logits(answers, name):
    """If this fails, `tp-invariant` does not hold in the engine: both ranks' logits, put together, score otherwise."""
    kept = [rank[name].columns for rank in answers]
    alone = load_factory(FACTORIES[name])()
    alone.vocab = REAL
    logits = torch.cat([item["kept_logits"] for item in kept], dim=-1)
    expected = alone(logits, kept[0]["kept_ids"])
    for item in kept:
        assert torch.equal(item["kept_values"], expected)
    moved = alone(logits.roll(1, 0), kept[0]["kept_ids"])
    assert not torch.equal(moved, expected), "the comparison sees other logits"


def test_the_tree_has_the_bits_of_gathered_logits_in_the_engine(answers):
    """If this fails, two backends that claim each other's bits part on real logits."""
    tree, gathered = (answers[0][name].values for name in list(FACTORIES)[:2])
    assert torch.equal(tree, gathered)


def test_padding_is_included_where_the_policy_says_so(answers):
    """If this fails, the policy does not reach a backend of another package."""
    for rank in answers:
        report = rank["include"].said["report"]
        assert report["mechanism"]["vocabulary"]["policy"] == "include"
    kept = [rank["include"].columns for rank in answers]
    logits = torch.cat([item["kept_logits"] for item in kept], dim=-1).double()
    expected = logits.log_softmax(-1).gather(-1, kept[0]["kept_ids"][:, None])[:, 0]
    assert float((answers[0]["include"].values.double() - expected).abs().max()) <= 4e-6
    assert float((answers[0]["include"].values - answers[0]["native"].values).abs().max()) > 1e-3

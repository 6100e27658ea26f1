"""Every vocab-parallel backend over eight real gloo processes, in groups of 1, 2, 4 and 8, against float64."""

from __future__ import annotations

import logp_ranks as ranks
import numpy as np
import pytest
import torch
from xcfg_ops_logp.reference import evaluate
from xcfg_ops_logp.torch_backends import FIXED_POINT, GATHERED, PARTIALS, REDUCED, SLIME, TREE
from xcfg_testkit import oracles

BACKENDS = (TREE, GATHERED, PARTIALS, REDUCED, FIXED_POINT, SLIME)
INVARIANT = (TREE, GATHERED, FIXED_POINT)
pytestmark = pytest.mark.slow
SMALL = ["512", "500 in 512", "500 in 128 each", "500 ragged", "2 padded", "1 padded"]
EXACT = ["512", "500 ragged", "2 padded"]
LARGE = ["megatron 152064", "49152"]
ROWS = 192
"""Enough to see an order: of 192 rows, tens have another last digit."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Answers of all ranks: name of the job -> one answer per rank."""
    jobs = {}
    for item in BACKENDS:
        layouts = [*SMALL, *LARGE, *(["vllm 151936"] if item is TREE else [])]
        jobs[item.backend_id, "float32"] = ("every_size", (item.factory, {}, layouts, "float32"))
        jobs[item.backend_id, "float64"] = ("every_size", (item.factory, {}, EXACT, "float64"))
        jobs[item.backend_id, "rows"] = ("many_rows", (item.factory, {}, "49152", ROWS))
    for kind in ("Shardwise", "Backwards", "Swapped"):
        jobs[kind] = ("many_rows", (kind, {}, "49152", ROWS))
    jobs["aligned"] = ("many_rows", (PARTIALS.factory, {"tile": 512}, "49152", ROWS))
    jobs["cut"] = ("many_rows", (PARTIALS.factory, {"tile": 4096}, "49152", ROWS))
    jobs["gap"] = ("refused", ([100, 100, 90, 100],))
    jobs["overlap"] = ("refused", ([100, 101, 100, 100],))
    jobs["captured"] = ("captured", ([100, 140, 200, 72], [0, 100, 240, 440]))
    jobs["misplaced"] = ("captured", ([128] * 4, [0, 128, 255, 384]))
    answers = ranks.run(tmp_path_factory.mktemp("ranks"), list(jobs.values()))
    return {name: [answer[index] for answer in answers] for index, name in enumerate(jobs)}


@pytest.mark.parametrize("layout", SMALL + LARGE)
@pytest.mark.parametrize("backend", [item.backend_id for item in BACKENDS])
def test_values_at_every_size(found, backend, layout):
    """If this fails, a shard is lost, counted twice or shifted, or padding is in the sum."""
    vocabulary = ranks.LAYOUTS[layout][0]
    logits, selected = ranks.case(vocabulary, vocabulary, torch.float32)
    expected = evaluate(logits, selected)
    allowed = oracles.bound(logits, expected.logprob.numpy(), expected.logsumexp.numpy(), torch.finfo().eps)
    for size in ranks.SIZES:
        values, _ = ranks.whole(found[backend, "float32"], layout, size)
        for mine, true in zip(values, expected, strict=True):
            misses = oracles.describe_misses(mine.double().numpy(), true.numpy(), allowed)
            assert not misses, f"{size} ranks:\n{misses}"
        assert found[backend, "float32"][0][layout, size]["summed"] == vocabulary


@pytest.mark.parametrize("layout", EXACT)
@pytest.mark.parametrize("backend", [item.backend_id for item in BACKENDS])
def test_gradients_at_every_size(found, backend, layout):
    """If this fails, training with the backend takes another step than the loss says: float64 autograd is the oracle.

    The fixed point rounds each exponential to 2^-45, which its gradients inherit; slime's entropy cancels logits of
    3e4, which costs 3e4 roundings.
    """
    vocabulary = ranks.LAYOUTS[layout][0]
    logits, selected = ranks.case(vocabulary, vocabulary, torch.float64)
    expected = autograd(logits, selected)
    slack = 1e-9 if backend in (FIXED_POINT.backend_id, SLIME.backend_id) else 1e-11
    for size in ranks.SIZES:
        _, gradient = ranks.whole(found[backend, "float64"], layout, size)
        assert float((gradient - expected).abs().max()) <= slack, size


def autograd(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """The gradient of the loss that the ranks compute, by torch."""
    leaf = logits.clone().requires_grad_()
    log_p = leaf.log_softmax(-1)
    surprise = torch.where(log_p.isinf(), 0.0, log_p)
    entropy = -(leaf.softmax(-1) * surprise).sum(-1)
    logprob = log_p.gather(-1, selected[:, None])[:, 0]
    weights = torch.arange(1, len(logits) + 1)
    (weights * (logprob - 2 * leaf.logsumexp(-1) + 3 * entropy)).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def test_the_gradient_in_float32(found):
    """If this fails, the backward loses more than float32 does: p is off by the error of its exponent."""
    vocabulary = ranks.LAYOUTS["49152"][0]
    logits, selected = ranks.case(vocabulary, vocabulary, torch.float32)
    expected = autograd(logits.double(), selected)
    for size in ranks.SIZES:
        _, gradient = ranks.whole(found[TREE.backend_id, "float32"], "49152", size)
        gap = (gradient.double() - expected).abs() / (expected.abs() + 1e-6)
        assert float(gap.max()) < 64 * 32 * torch.finfo().eps


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", [item.backend_id for item in INVARIANT])
def test_bits_of_the_invariant_ones(found, backend, dtype):
    """If this fails, `tp-invariant` is claimed and values or gradients move with the tensor-parallel size."""
    for layout in SMALL + LARGE if dtype == "float32" else EXACT:
        assert ranks.differing(found[backend, dtype], layout) == [], layout
    one, *rest = rows_by_size(found[backend, "rows"])
    assert all(ranks.same(one, other) for other in rest)


def test_bits_across_paddings(found):
    """If this fails, an engine that pads 151,936 to 152,064 has other bits than one that does not."""
    for backend in (item.backend_id for item in INVARIANT):
        answers = found[backend, "float32"]
        for first, second in (("vllm 151936", "megatron 152064"), ("500 in 512", "500 ragged")):
            if backend != TREE.backend_id and "vllm" in first:
                continue
            for size in ranks.SIZES:
                (values, gradient), (others, other) = (ranks.whole(answers, name, size) for name in (first, second))
                assert all(ranks.same(*pair) for pair in zip(values, others, strict=True))
                assert ranks.same(gradient, other)


def test_the_tree_has_the_bits_of_gathered_logits(found):
    """If this fails, the two backends that claim each other's bits part when the vocabulary is split."""
    for layout in SMALL + LARGE:
        for size in ranks.SIZES:
            pair = [ranks.whole(found[item.backend_id, "float32"], layout, size) for item in (TREE, GATHERED)]
            assert all(ranks.same(*values) for values in zip(pair[0][0], pair[1][0], strict=True)), (layout, size)
            assert ranks.same(pair[0][1], pair[1][1]), (layout, size)


def rows_by_size(answers) -> list[torch.Tensor]:
    """The log probabilities of rank 0 at each size."""
    return [answers[0][size] for size in ranks.SIZES]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda item: item.backend_id)
def test_what_is_claimed_holds_over_ranks(found, backend):
    """If this fails, a claim that one rank can show does not hold where ranks exchange."""
    answers = found[backend.backend_id, "rows"]
    for size in ranks.SIZES:
        first = answers[0][size]
        held = {
            "run-to-run": ranks.same(first, answers[0]["again", size]),
            "batch-invariant": ranks.same(first[list(ranks.ALONE)], answers[0]["alone", size]),
        }
        assert all(held[claim] for claim in held if claim in backend.properties), (size, held)


def test_the_librarys_all_reduce_depends_on_the_batch(found):
    """If this fails, an all-reduce adds every row's ranks in one order, and could claim batch invariance."""
    answers = found[REDUCED.backend_id, "rows"]
    moved = [int((answers[0][size][list(ranks.ALONE)] != answers[0]["alone", size]).sum()) for size in ranks.SIZES]
    assert moved[:2] == [0, 0], "of two ranks there is one order"
    assert moved[2] > 0 or moved[3] > 0, moved


def test_a_planted_order_is_seen(found):
    """If this fails, the tests of bits above cannot see the order of a sum, and their silence means nothing.

    Of two ranks it cannot be seen: a + b is b + a. Four show it.
    """
    tree = rows_by_size(found[TREE.backend_id, "rows"])
    forward, backward = rows_by_size(found["Shardwise"]), rows_by_size(found["Backwards"])
    moved = [int((first != second).sum()) for first, second in zip(forward, backward, strict=True)]
    assert moved[:2] == [0, 0]
    assert moved[2] > 0 and moved[3] > 0, moved
    for planted in (forward, backward):
        assert not all(ranks.same(planted[0], other) for other in planted[1:])
        assert not ranks.same(planted[3], tree[3])
        assert float((planted[3] - tree[3]).abs().max()) <= 2e-6, "the plant is an order, not another sum"


def test_the_order_of_arrival_is_no_order_of_the_sum(found):
    """If this fails, the tree depends on which rank is listed first."""
    pairs = zip(rows_by_size(found["Swapped"]), rows_by_size(found[TREE.backend_id, "rows"]), strict=True)
    assert all(ranks.same(first, second) for first, second in pairs)


def test_tiles_are_invariant_exactly_where_no_shard_cuts_one(found):
    """If this fails, the partials of tiles are merged by rank, or their lack of a claim has no reason.

    Shards of 49,152 at 8 ranks begin at multiples of 6,144: tiles of 512 lie whole within them, tiles of 4,096 do not.
    """
    one, *rest = rows_by_size(found["aligned"])
    assert all(ranks.same(one, other) for other in rest)
    one, *rest = rows_by_size(found["cut"])
    assert [ranks.same(one, other) for other in rest] == [True, True, False]


def test_the_librarys_all_reduce_moves_bits(found):
    """If this fails, the backends that claim nothing about ranks could claim it, and the comparison is of no use."""
    for backend in (REDUCED.backend_id, SLIME.backend_id):
        one, *rest = rows_by_size(found[backend, "rows"])
        assert not all(ranks.same(one, other) for other in rest), backend


def test_the_tree_against_the_integers(found):
    """If this fails, one of two sums that share no order is wrong."""
    tree, whole = (rows_by_size(found[item.backend_id, "rows"])[0].double().numpy() for item in (TREE, FIXED_POINT))
    np.testing.assert_allclose(tree, whole, rtol=0, atol=8 * 32 * torch.finfo().eps)


@pytest.mark.parametrize(("name", "said"), [("gap", "rank 3 holds"), ("overlap", "rank 2 holds")])
def test_shards_that_do_not_tile_are_refused_on_every_rank(found, name, said):
    """If this fails, an entry that two ranks hold counts twice, or one that none holds is lost, or a rank waits."""
    answers = found[name]
    assert all(said in answer for answer in answers[:4]), answers
    assert not any(answers[4:])


def test_a_capture_keeps_where_each_rank_was_placed(found):
    """If this fails, the gate of the debug matrix sees other shards than those that the engine used."""
    logits, selected = ranks.case(500, 512, torch.float32)
    for answer in found["captured"][:4]:
        assert answer["shards"].tolist() == [[0, 100], [100, 240], [240, 440], [440, 512]]
        assert torch.equal(answer["logits"], logits[:, :500]), "the columns of all ranks, without the padding"
        assert torch.equal(answer["value"], evaluate(logits[:, :500], selected).logprob)
        assert (answer["beyond"], answer["summed"]) == (7.0, 500)
    assert {tuple(map(tuple, answer["shards"].tolist())) for answer in found["misplaced"][:4]} == {
        ((0, 128), (128, 256), (255, 383), (384, 512))
    }

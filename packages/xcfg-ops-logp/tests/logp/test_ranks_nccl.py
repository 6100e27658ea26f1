"""The vocab-parallel backends over NCCL: four ranks that share one card, in groups of 1, 2 and 4."""

from __future__ import annotations

import logp_ranks as ranks
import pytest
import torch
from xcfg_ops_logp.reference import evaluate
from xcfg_ops_logp.torch_backends import FIXED_POINT, GATHERED, PARTIALS, REDUCED, SLIME, TREE
from xcfg_testkit import oracles

pytestmark = pytest.mark.gpu
BACKENDS = (TREE, GATHERED, PARTIALS, REDUCED, FIXED_POINT, SLIME)
INVARIANT = (TREE, GATHERED, FIXED_POINT)
WORLD = 4
SIZES = tuple(size for size in ranks.SIZES if size <= WORLD)
LAYOUTS = ["megatron 152064", "500 ragged", "500 in 128 each"]


ALGORITHMS = ("allreduce:ring", "allreduce:tree")
"""Of the sum alone: NCCL has no tree for a gather, and refuses one that is told to use it."""


def answered(folder, algorithm: str):
    """Answers of all ranks: name of the job -> one answer per rank."""
    jobs = {}
    for item in BACKENDS:
        jobs[item.backend_id, "float32"] = ("every_size", (item.factory, {}, LAYOUTS, "float32"))
        jobs[item.backend_id, "rows"] = ("many_rows", (item.factory, {}, "49152", 192))
    for kind in ("Shardwise", "Backwards"):
        jobs[kind] = ("many_rows", (kind, {}, "49152", 192))
    answers = ranks.run(folder, list(jobs.values()), WORLD, "nccl", algorithm)
    return {name: [answer[index] for answer in answers] for index, name in enumerate(jobs)}


@pytest.fixture(scope="module")
def by_algorithm(tmp_path_factory):
    """The answers under each NCCL_ALGO."""
    return {algorithm: answered(tmp_path_factory.mktemp(algorithm), algorithm) for algorithm in ALGORITHMS}


@pytest.fixture(scope="module", params=ALGORITHMS)
def found(request, by_algorithm):
    """The answers under one NCCL_ALGO."""
    return by_algorithm[request.param]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda item: item.backend_id)
def test_values_over_nccl(found, backend, layout):
    """If this fails, a shard is lost, counted twice or shifted on its way through NCCL."""
    vocabulary = ranks.LAYOUTS[layout][0]
    logits, selected = ranks.case(vocabulary, vocabulary, torch.float32)
    expected = evaluate(logits, selected)
    allowed = oracles.bound(logits, expected.logprob.numpy(), expected.logsumexp.numpy(), torch.finfo().eps)
    for size in SIZES:
        values, _ = ranks.whole(found[backend.backend_id, "float32"], layout, size)
        for mine, true in zip(values, expected, strict=True):
            misses = oracles.describe_misses(mine.double().numpy(), true.numpy(), allowed)
            assert not misses, f"{size} ranks:\n{misses}"


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda item: item.backend_id)
def test_claims_over_nccl(found, backend):
    """If this fails, a claim that holds over gloo does not hold over NCCL on a card."""
    answers = found[backend.backend_id, "rows"]
    for size in SIZES:
        first = answers[0][size]
        held = {
            "run-to-run": ranks.same(first, answers[0]["again", size]),
            "batch-invariant": ranks.same(first[list(ranks.ALONE)], answers[0]["alone", size]),
        }
        assert all(held[claim] for claim in held if claim in backend.properties), (size, held)
    if backend in INVARIANT:
        differing = {layout: ranks.differing(found[backend.backend_id, "float32"], layout) for layout in LAYOUTS}
        assert differing == {layout: [] for layout in LAYOUTS}
        assert all(ranks.same(answers[0][1], answers[0][size]) for size in SIZES)


def test_a_planted_order_is_seen_over_nccl(found):
    """If this fails, the bits above could not have shown another order of the sum."""
    forward, backward = ([found[kind][0][size] for size in SIZES] for kind in ("Shardwise", "Backwards"))
    moved = [int((first != second).sum()) for first, second in zip(forward, backward, strict=True)]
    assert moved[:2] == [0, 0], "of two ranks there is one order"
    assert moved[2] > 0


@pytest.mark.parametrize("backend", [TREE, GATHERED, FIXED_POINT, PARTIALS], ids=lambda item: item.backend_id)
def test_a_merge_of_ones_own_does_not_know_nccls_algorithm(by_algorithm, backend):
    """If this fails, the library adds where the backend says that it adds by itself."""
    first, second = (by_algorithm[name][backend.backend_id, "rows"] for name in ALGORITHMS)
    assert all(ranks.same(first[0][size], second[0][size]) for size in SIZES)

"""The vocab-parallel backends on one rank, and the tree by itself: order, values, refusals, rows without a value."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from xcfg.errors import IdentityError, UsageError
from xcfg.plugin.operators import load_factory
from xcfg.plugin.protocols import ShardedLogprob
from xcfg_ops_logp.reference import build, evaluate
from xcfg_ops_logp.sharded.fixed_point import ENTRIES, FixedPoint
from xcfg_ops_logp.sharded.partials import AllGatherPartials
from xcfg_ops_logp.sharded.tree import Tree, fold, merge, roots
from xcfg_ops_logp.torch_backends import BACKENDS, REFERENCE_FLOAT32
from xcfg_testkit import cost

SHARDED = [item for item in BACKENDS if item is not REFERENCE_FLOAT32]
INF, NAN = math.inf, math.nan
each = pytest.mark.parametrize("made", [load_factory(item.factory) for item in SHARDED], ids=lambda item: item.__name__)


def recursive(values: np.ndarray, level: int, index: int) -> np.float32 | None:
    """The sum at a node by its definition, one addition at a time in numpy's float32."""
    if level == 0:
        return values[index] if index < len(values) else None
    left, right = (recursive(values, level - 1, 2 * index + side) for side in (0, 1))
    return left if right is None else left + right


def columns(count: int) -> torch.Tensor:
    """Seeded positive float32 [3, count] over eight orders of magnitude."""
    generator = torch.Generator().manual_seed(count)
    return torch.exp(torch.randn(3, count, generator=generator) * 4)


def by_tree(terms: torch.Tensor, edges: list[int]) -> torch.Tensor:
    """The sum of shards cut at `edges`."""
    nodes = []
    for start, stop in zip([0, *edges], [*edges, terms.shape[1]], strict=True):
        nodes += zip(roots(start, stop), fold(terms[:, start:stop], start).unbind(-1), strict=True)
    return merge(reversed(nodes))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 31, 37, 64, 100])
def test_the_order_is_the_one_that_the_tree_defines(count):
    """If this fails, the vectorised tree is another tree: the recursive definition in numpy has its bits."""
    terms = columns(count)
    level = (count - 1).bit_length()
    expected = [recursive(row, level, 0) for row in terms.numpy()]
    assert by_tree(terms, []).numpy().tobytes() == np.array(expected, np.float32).tobytes()


@pytest.mark.parametrize("count", [2, 5, 16, 37, 50])
def test_every_cut_has_the_same_bits(count):
    """If this fails, some shard boundary moves a bit."""
    terms = columns(count)
    expected = by_tree(terms, [])
    for edge in range(1, count):
        assert torch.equal(by_tree(terms, [edge]), expected), edge
    for first in range(1, count - 1, 3):
        for second in range(first + 1, count, 2):
            assert torch.equal(by_tree(terms, [first, second]), expected), (first, second)
    assert torch.equal(by_tree(terms, list(range(1, count))), expected), "every entry a shard of its own"


def test_a_plain_sum_has_other_bits():
    """If this fails, the numbers above are too tame to tell one order from another."""
    terms = columns(1000)
    plain = torch.stack([row.cumsum(0)[-1] for row in terms])
    assert not torch.equal(by_tree(terms, []), plain)


def test_what_a_rank_hands_out_is_small():
    """If this fails, ranks exchange much of what they hold: two roots of each level are the most there are."""
    for start in range(0, 151_936, 18_992):
        assert len(roots(start, start + 18_992)) <= 2 * 18
    assert roots(0, 8) == [(3, 0)]
    assert roots(3, 9) == [(0, 3), (0, 8), (2, 1)]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_nodes_that_do_not_tile_are_refused(missing):
    """If this fails, a lost subtree is a smaller sum instead of an error."""
    terms = columns(12)
    nodes = list(zip(roots(0, 5) + roots(5, 12), [terms[:, 0]] * 9, strict=False))
    with pytest.raises(ValueError, match=r"nodes of \d+ entries end at 12"):
        merge(nodes[:missing] + nodes[missing + 1 :])
    with pytest.raises(ValueError, match="comes twice"):
        merge([*nodes, nodes[missing]])


@each
def test_three_values_against_eighty_digits(made):
    """If this fails, log probability, log-sum-exp or entropy is another function."""
    torch.manual_seed(0)
    logits, selected = (torch.randn(4, 500) * 4).bfloat16(), torch.tensor([0, 499, 17, 256])
    found = made(**({} if made is FixedPoint else {"accum_dtype": "float64"})).values(logits, selected)
    with mpmath.workdps(80):
        for row, chosen, *values in zip(logits.double().tolist(), selected.tolist(), *found, strict=True):
            wide = [mpmath.mpf(value) for value in row]
            lse = mpmath.log(mpmath.fsum(mpmath.exp(value) for value in wide))
            entropy = mpmath.fsum(mpmath.exp(value - lse) * (lse - value) for value in wide)
            expected = (wide[chosen] - lse, lse, entropy)
            for value, true in zip(values, expected, strict=True):
                assert float(value) == pytest.approx(float(true), rel=0, abs=1e-11 if made is FixedPoint else 1e-13)


@each
@pytest.mark.parametrize("bad", [NAN, INF])
def test_rows_without_a_distribution_have_no_value(made, bad):
    """If this fails, a NaN or an infinity gives a number somewhere, which could pass a comparison."""
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(1))
    clean = logits.clone()
    logits[1, 7] = bad
    logits[2] = -INF
    selected = torch.tensor([3, 4, 5, 6])
    found, expected = made().values(logits, selected), made().values(clean, selected)
    for mine, other in zip(found, expected, strict=True):
        assert mine[1:3].isnan().all()
        assert torch.equal(mine[[0, 3]], other[[0, 3]]), "a neighbouring row changed"


@each
def test_an_almost_certain_token_keeps_its_digits(made):
    """If this fails, one token in many is exactly 0; slime's formula is known for it, and an integer has 44 places."""
    logits = torch.tensor([[0.0, -20.0, -30.0]])
    found = float(made()(logits, torch.tensor([0])))
    expected = float(evaluate(logits, torch.tensor([0])).logprob)
    if made.__name__ == "Slime":
        assert found == 0.0 != expected
    else:
        assert found == pytest.approx(expected, rel=1e-4 if made is FixedPoint else 1e-6)


@each
def test_ignored_rows_have_no_value_and_no_gradient(made):
    """If this fails, an ignored row can pass a comparison, or moves the weights."""
    logits = torch.randn(3, 9, requires_grad=True, generator=torch.Generator().manual_seed(2))
    found = made(ignore_index=-100)(logits, torch.tensor([1, -100, 8]))
    assert found.isnan().tolist() == [False, True, False]
    found.sum().backward()
    assert logits.grad[1].tolist() == [0.0] * 9
    assert logits.grad[[0, 2]].abs().sum() > 0
    with pytest.raises(IdentityError, match="id -1 in row 0"):
        made(ignore_index=-100)(logits, torch.tensor([-1, -100, 8]))
    with pytest.raises(IdentityError, match="id -100 in row 1"):
        made()(logits, torch.tensor([1, -100, 8]))


@each
def test_the_form_of_a_sharded_operator(made):
    """If this fails, a runtime hands gathered logits to a backend that is made for shards."""
    assert isinstance(made(), ShardedLogprob)
    assert not isinstance(build(), ShardedLogprob)


@each
def test_hidden_columns_take_no_part(made):
    """If this fails, padding is in the denominator, or an id of the padding is scored."""
    logits = torch.randn(6, 512, generator=torch.Generator().manual_seed(3)) * 4
    selected = torch.tensor([0, 499, 250, 1, 2, 3])
    operator = made()
    operator.vocab = 500
    masked = operator(logits, selected)
    assert operator.summed == 500
    assert torch.allclose(masked.double(), evaluate(logits[:, :500], selected).logprob, rtol=0, atol=4e-6)
    operator.vocab = None
    included = operator(logits, selected)
    assert operator.summed == 512
    assert torch.allclose(included.double(), evaluate(logits, selected).logprob, rtol=0, atol=4e-6)
    operator.vocab = 500
    with pytest.raises(IdentityError, match="outside the vocabulary of 500"):
        operator(logits, torch.full((6,), 500))
    operator.vocab = 513
    with pytest.raises(UsageError, match="513 entries"):
        operator(logits, selected)


@each
def test_chunks_move_no_bit_and_no_gradient(made):
    """If this fails, the memory that a machine has decides the numbers."""
    logits = (torch.randn(23, 67, generator=torch.Generator().manual_seed(4)) * 4).bfloat16()
    selected = torch.randint(0, 67, (23,), generator=torch.Generator().manual_seed(5))
    results = []
    for rows in (1, 5, 64):
        leaf = logits.clone().requires_grad_()
        found = made(chunk_rows=rows).values(leaf, selected)
        (found.logprob.sum() + found.entropy.sum()).backward()
        assert leaf.grad.dtype == torch.bfloat16
        results.append((*(item.detach() for item in found), leaf.grad))
    if made.__name__ == "Slime":  # a library's sum may differ between one row and many
        results = results[1:]
    for other in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], other, strict=True))


@each
@pytest.mark.parametrize(
    "options", [{"chunk_rows": 0}, {"chunk_rows": True}, {"ignore_index": "none"}, {"ignore_index": 1.0}]
)
def test_bad_options(made, options):
    """If this fails, a nonsensical option is taken silently."""
    with pytest.raises(UsageError, match=next(iter(options))):
        made(**options)


def test_options_of_some():
    """If this fails, an unknown accumulator or tile is taken, or the integers overflow."""
    with pytest.raises(UsageError, match=r"accum_dtype is 'bfloat16'.*"):
        Tree(accum_dtype="bfloat16")
    with pytest.raises(UsageError, match="tile is 0"):
        AllGatherPartials(tile=0)
    with pytest.raises(UsageError, match=f"room for {ENTRIES}"):
        FixedPoint()(torch.zeros(1, ENTRIES + 1), torch.tensor([0]))
    assert float(FixedPoint()(torch.zeros(1, ENTRIES), torch.tensor([0]))) == pytest.approx(-math.log(ENTRIES))


def test_accumulators_are_what_they_say():
    """If this fails, float64 is asked for and float32 is summed, or wide logits are narrowed."""
    logits, selected = torch.randn(3, 4099, generator=torch.Generator().manual_seed(6)) * 4, torch.tensor([0, 1, 2])
    exact = evaluate(logits, selected).logprob
    narrow, wide = (Tree(accum_dtype=name)(logits, selected) for name in ("float32", "float64"))
    assert (narrow.dtype, wide.dtype) == (torch.float32, torch.float64)
    assert float((wide - exact).abs().max()) < 1e-14 < float((narrow.double() - exact).abs().max())
    assert Tree()(logits.double(), selected).dtype == torch.float64


@each
def test_memory_is_that_of_a_few_rows(made):
    """If this fails, a million rows need the memory of their logits in float32, or a chunk lives on beside the next."""
    logits = torch.randn(1, 65_536, generator=torch.Generator().manual_seed(7)).bfloat16().expand(16, -1)
    operator, selected = made(chunk_rows=2), torch.zeros(16, dtype=torch.int64)
    wide = 8 if made is FixedPoint else 4
    chunk, kept = 2 * 65_536 * wide, 16 * 8 * 8
    assert chunk < cost.measure(operator, logits, selected).peak_bytes <= 2.6 * chunk + kept


@pytest.mark.parametrize(
    ("asked", "logits", "did"),
    [
        ("float64", torch.float32, "float64"),
        ("float32", torch.float64, "float64"),
        ("float32", torch.bfloat16, "float32"),
    ],
)
def test_the_accumulator_is_stated_as_it_ran(asked, logits, did):
    """If this fails, a run cannot show that the option acted, or takes one that did not at its word."""
    operator = Tree(accum_dtype=asked)
    assert operator.stated == {}
    operator(torch.randn(3, 40).to(logits), torch.arange(3))
    assert operator.stated == {"options": {"accum_dtype": did}}
    operator(torch.zeros(0, 40), torch.arange(0))
    assert operator.stated == {}, "a call without rows shows nothing"

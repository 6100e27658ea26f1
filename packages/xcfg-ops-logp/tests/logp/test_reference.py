"""The float64 reference against arithmetic that is not torch's: mpmath, Fractions, numpy's extended precision."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from xcfg.errors import IdentityError, UsageError, XcfgError
from xcfg.plugin.operators import load_factory
from xcfg_ops_logp.plugin import REFERENCE
from xcfg_ops_logp.reference import both, build, build_float32, evaluate, selected_logprob, tree_sum

INF, NAN = math.inf, math.nan


def exact(row: list[float], selected: int) -> float:
    """The log probability of one row, in 80 decimal digits, rounded once to float64."""
    with mpmath.workdps(80):
        values = [mpmath.mpf(value) for value in row]
        total = mpmath.fsum(mpmath.exp(value) for value in values)
        return float(values[selected] - mpmath.log(total))


def rows(count: int, vocabulary: int, dtype: torch.dtype = torch.float64, scale: float = 4.0) -> torch.Tensor:
    """Seeded logits."""
    generator = torch.Generator().manual_seed(7919 * count + vocabulary)
    return (torch.randn(count, vocabulary, generator=generator, dtype=torch.float64) * scale).to(dtype)


def ids(count: int, vocabulary: int) -> torch.Tensor:
    """Seeded ids, the first and the last of the vocabulary among them."""
    generator = torch.Generator().manual_seed(count + 31 * vocabulary)
    found = torch.randint(0, vocabulary, (count,), generator=generator)
    if count:
        found[0] = vocabulary - 1
        found[-1] = 0
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("count", "vocabulary"), [(1, 1), (1, 2), (3, 7), (5, 33), (2, 1021), (7, 500), (1, 4097)])
def test_against_eighty_digits(dtype, count, vocabulary):
    """If this fails, the value that all others are measured against is wrong."""
    logits, selected = rows(count, vocabulary, dtype), ids(count, vocabulary)
    result = selected_logprob(logits, selected)
    assert result.dtype == torch.float64
    assert result.shape == (count,)
    for row, index, value in zip(logits.double().tolist(), selected.tolist(), result.tolist(), strict=True):
        expected = exact(row, index)
        assert value == pytest.approx(expected, rel=8 * np.finfo(float).eps, abs=4 * np.finfo(float).eps)


def test_against_extended_precision_on_a_real_vocabulary():
    """If this fails, the tree loses digits over a long row."""
    logits, selected = rows(6, 49_152, torch.bfloat16), ids(6, 49_152)
    wide = logits.double().numpy().astype(np.longdouble)
    expected = wide[np.arange(6), selected.numpy()] - np.log(np.exp(wide).sum(axis=-1))
    found = selected_logprob(logits, selected).numpy()
    np.testing.assert_allclose(found, expected.astype(np.float64), rtol=4 * np.finfo(float).eps)


def test_uniform_rows_are_minus_log_v():
    """If this fails, a hand-computed case is missed: V equal logits have probability 1/V each."""
    for vocabulary in (1, 2, 3, 10, 1000):
        found = selected_logprob(torch.full((1, vocabulary), 3.25), torch.tensor([vocabulary - 1]))
        assert found.item() == pytest.approx(-math.log(vocabulary), rel=1e-15, abs=0.0)


def test_rational_probabilities():
    """If this fails, logits that are logarithms of integers do not give their exact ratios."""
    weights = [1, 2, 3, 5, 8, 13]
    logits = torch.tensor([[math.log(weight) for weight in weights]], dtype=torch.float64)
    for index, weight in enumerate(weights):
        expected = Fraction(weight, sum(weights))
        found = math.exp(selected_logprob(logits, torch.tensor([index])).item())
        assert found == pytest.approx(float(expected), rel=4e-15)


def test_a_nearly_certain_token_keeps_its_digits():
    """If this fails, one token in many is exactly 0 and a relative comparison divides by it."""
    logits = torch.tensor([[0.0, -46.0, -50.0]], dtype=torch.float64)
    found = selected_logprob(logits, torch.tensor([0])).item()
    assert found == pytest.approx(exact(logits[0].tolist(), 0), rel=1e-15)
    assert -2e-20 < found < -1e-20
    assert (logits[0, 0] - logits[0].logsumexp(0)).item() == 0.0


def test_a_shift_of_the_row_changes_nothing():
    """If this fails, large logits overflow: a power-of-two shift of small multiples of it is exact."""
    logits = torch.arange(40, dtype=torch.float64).reshape(4, 10) / 4
    selected = torch.tensor([0, 3, 9, 5])
    base = selected_logprob(logits, selected)
    for shift in (2.0**20, -(2.0**20), 2.0**40):
        assert torch.equal(selected_logprob(logits + shift, selected), base)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_ends_of_each_dtype(dtype):
    """If this fails, the largest finite logits are taken for infinities."""
    top = torch.finfo(dtype).max
    logits = torch.tensor([[top, -top, 0.0], [top, top, -top]], dtype=dtype)
    found = selected_logprob(logits, torch.tensor([0, 1]))
    assert found.tolist() == [0.0, -math.log(2)]


@pytest.mark.parametrize(
    ("row", "selected", "expected"),
    [
        ([0.0, -0.0], 0, -math.log(2)),
        ([-0.0, 0.0], 0, -math.log(2)),
        ([-0.0], 0, 0.0),
        ([5.0, -INF], 0, 0.0),
        ([5.0, -INF], 1, -INF),
        ([5.0, -INF, 5.0], 2, -math.log(2)),
        ([-INF, -INF], 0, NAN),
        ([-INF], 0, NAN),
        ([INF, 0.0], 0, NAN),
        ([INF, 0.0], 1, NAN),
        ([INF, INF], 1, NAN),
        ([INF, -INF], 1, NAN),
        ([INF], 0, NAN),
        ([NAN, 0.0], 0, NAN),
        ([0.0, NAN], 0, NAN),
        ([0.0, NAN, INF], 0, NAN),
        ([0.0, NAN, -INF], 2, NAN),
        ([NAN], 0, NAN),
        ([5e-324, 0.0], 0, -math.log(2)),
    ],
)
def test_zeros_infinities_and_nan(row, selected, expected):
    """If this fails, a row without a distribution gives a number, which is the false pass that xcfg refuses."""
    logits = torch.tensor([row, [0.0] * len(row)], dtype=torch.float64)
    found = selected_logprob(logits, torch.tensor([selected, 0])).tolist()
    assert found[0] == pytest.approx(expected, rel=1e-15, nan_ok=True)
    assert found[1] == pytest.approx(-math.log(len(row)), rel=1e-15, abs=0.0), "the neighbour row was touched"


def test_no_rows():
    """If this fails, a rank without tokens crashes."""
    found = selected_logprob(torch.empty(0, 7, dtype=torch.bfloat16), torch.empty(0, dtype=torch.int64))
    assert (found.shape, found.dtype) == ((0,), torch.float64)


@pytest.mark.parametrize("bad", [-1, 7, 2**40, -(2**40)])
def test_ids_outside_the_vocabulary(bad):
    """If this fails, an id of another vocabulary reads some other logit."""
    with pytest.raises(IdentityError, match=rf"id {bad} in row 2 is outside the vocabulary of 7"):
        selected_logprob(rows(3, 7), torch.tensor([0, 6, bad]))


@pytest.mark.parametrize(
    ("logits", "selected"),
    [
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(3), torch.zeros(1, dtype=torch.int64)),
        (torch.zeros(1, 2, 3), torch.zeros(1, dtype=torch.int64)),
        (torch.zeros(2, 0), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros(2, 3), torch.zeros(2)),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.bool)),
    ],
)
def test_wrong_inputs_are_refused(logits, selected):
    """If this fails, a wrong shape is broadcast into a wrong answer."""
    with pytest.raises(UsageError):
        selected_logprob(logits, selected)


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 1021, 50_257])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_row_has_the_same_bits_at_any_n(vocabulary, threads):
    """If this fails, the declared property batch-invariant is false."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        logits, selected = rows(37, vocabulary, torch.float32), ids(37, vocabulary)
        together = selected_logprob(logits, selected)
        for start, stop in ((0, 1), (1, 2), (36, 37), (0, 2), (3, 10), (5, 37)):
            part = selected_logprob(logits[start:stop].clone(), selected[start:stop])
            assert torch.equal(part, together[start:stop])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 31, 32, 33, 1000])
def test_chunks_move_no_bit(chunk_rows):
    """If this fails, the memory option is a numerical knob."""
    logits, selected = rows(65, 501, torch.bfloat16), ids(65, 501)
    assert torch.equal(build(chunk_rows=chunk_rows)(logits, selected), build()(logits, selected))


def test_strides_move_no_bit():
    """If this fails, a transposed or sliced view of the same logits scores otherwise."""
    logits, selected = rows(9, 64, torch.float32), ids(9, 64)
    expected = selected_logprob(logits, selected)
    column_major = logits.t().contiguous().t()
    wide = torch.full((18, 128), NAN)
    wide[::2, ::2] = logits
    for view in (column_major, wide[::2, ::2], logits[:1].expand(9, 64)[0:1]):
        assert torch.equal(selected_logprob(view, selected[: len(view)]), expected[: len(view)])


def test_inputs_stay_as_they_were():
    """If this fails, scoring changes what the next operator reads; float64 needs no copy to be converted."""
    for dtype in (torch.float64, torch.bfloat16):
        logits, selected = rows(4, 9, dtype), ids(4, 9)
        kept = logits.clone(), selected.clone()
        selected_logprob(logits, selected)
        assert torch.equal(logits, kept[0])
        assert torch.equal(selected, kept[1])


def test_no_gradient_is_kept():
    """If this fails, scoring holds the graph of the training model in memory."""
    logits = rows(2, 5, torch.float32).requires_grad_()
    found = selected_logprob(logits, ids(2, 5))
    assert not found.requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 1000, 1021])
def test_the_tree_adds_every_column_once(width):
    """If this fails, a column is lost or counted twice: sums of distinct powers of two show which."""
    values = (2.0 ** (torch.arange(width) % 50)).double().repeat(3, 1)
    expected = math.fsum(values[0].tolist())
    assert tree_sum(values.clone()).tolist() == [expected] * 3


def test_memory_stays_bounded():
    """If this fails, the float64 copy of all rows is made at once."""
    from torch.profiler import ProfilerActivity, profile

    logits, selected = rows(512, 2048, torch.bfloat16), ids(512, 2048)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        build(chunk_rows=4)(logits, selected)
    largest = max(event.cpu_memory_usage for event in recorded.events())
    assert largest <= 2 * 4 * 2048 * 8


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "8", None])
def test_bad_options(value):
    """If this fails, a nonsensical chunk ends in a silent empty result."""
    with pytest.raises(XcfgError, match="chunk_rows"):
        build(chunk_rows=value)


def test_the_descriptor_names_what_is_there():
    """If this fails, the plugin declares a factory that its module lacks, or another default than the code."""
    operator = load_factory(REFERENCE.factory)(**{item.name: item.default for item in REFERENCE.options})
    assert operator(torch.zeros(1, 4), torch.tensor([1])).item() == pytest.approx(-math.log(4), rel=1e-15)
    assert {"rlkernel.reference_logp", "reference", "pytorch"} == set(REFERENCE.aliases)


@pytest.mark.gpu
def test_on_a_gpu_as_on_a_cpu():
    """If this fails, the descriptor's device list promises too much; exp and log may differ in the last digit."""
    logits, selected = rows(70, 50_257, torch.bfloat16), ids(70, 50_257)
    expected = selected_logprob(logits, selected)
    found = selected_logprob(logits.cuda(), selected.cuda())
    np.testing.assert_allclose(found.cpu().numpy(), expected.numpy(), rtol=8 * np.finfo(float).eps)
    for start, stop in ((0, 1), (69, 70), (3, 40)):
        assert torch.equal(selected_logprob(logits[start:stop].cuda(), selected[start:stop].cuda()), found[start:stop])


@pytest.mark.parametrize("vocabulary", [1, 2, 500])
def test_log_sum_exp_and_entropy_against_eighty_digits(vocabulary):
    """If this fails, two of the three outputs of the reference are other functions."""
    logits, selected = rows(4, vocabulary, torch.bfloat16), ids(4, vocabulary)
    found = evaluate(logits, selected)
    with mpmath.workdps(80):
        for row, lse, entropy in zip(logits.double().tolist(), found.logsumexp, found.entropy, strict=True):
            wide = [mpmath.mpf(value) for value in row]
            expected = mpmath.log(mpmath.fsum(mpmath.exp(value) for value in wide))
            surprise = mpmath.fsum(mpmath.exp(value - expected) * (expected - value) for value in wide)
            assert float(lse) == pytest.approx(float(expected), rel=1e-14, abs=1e-14)
            assert float(entropy) == pytest.approx(float(surprise), rel=1e-13, abs=1e-14)


def test_entropy_of_masked_and_even_rows():
    """If this fails, a masked id has an infinite surprise, or V equal logits have another entropy than log V."""
    logits = torch.tensor([[0.0, -INF, 0.0, -INF], [1.0, 1.0, 1.0, 1.0], [NAN, 0.0, 0.0, 0.0]])
    found = evaluate(logits, torch.tensor([0, 1, 2]))
    assert found.entropy.tolist() == pytest.approx([math.log(2), math.log(4), NAN], rel=1e-15, nan_ok=True)


def test_both_references_read_the_same_inputs():
    """If this fails, what lies between the references is not what float32 rounds, but another input."""
    logits, selected = rows(6, 4097, torch.bfloat16), ids(6, 4097)
    wide, narrow = both(logits, selected)
    assert torch.equal(wide.logprob, selected_logprob(logits, selected))
    assert narrow.logprob.dtype == torch.float32
    gap = (narrow.logprob.double() - wide.logprob).abs()
    assert 0 < float(gap.max()) < 64 * np.finfo(np.float32).eps
    assert torch.equal(build_float32()(logits, selected), narrow.logprob)
    with pytest.raises(UsageError, match="float32 reference was handed float64"):
        both(logits.double(), selected)


def test_ignored_rows_have_no_value():
    """If this fails, a row that the contract skips has a number that can pass a comparison."""
    logits = rows(3, 7)
    found = build(ignore_index=-100)(logits, torch.tensor([1, -100, 6]))
    assert found.isnan().tolist() == [False, True, False]
    assert torch.equal(found[[0, 2]], selected_logprob(logits[[0, 2]], torch.tensor([1, 6])))
    with pytest.raises(IdentityError, match="id -100 in row 1"):
        build()(logits, torch.tensor([1, -100, 6]))
    with pytest.raises(UsageError, match="ignore_index"):
        build(ignore_index="none")

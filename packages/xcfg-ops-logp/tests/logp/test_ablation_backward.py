"""`xcfg.ablation_logp` in training: dlogits and entropy of every option against float64, and what a backward states."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical
from xcfg.errors import UsageError
from xcfg_ops_logp.ablation.descriptor import SHOWN_BY
from xcfg_ops_logp.ablation.operator import Ablation

EPS = torch.finfo(torch.float32).eps
NARROW = torch.finfo(torch.bfloat16).eps
ANALYTIC = {"backward_impl": "softmax_minus_onehot"}
SPLIT = {"vocab_shard_map": "even:8", "reduce": "allgather_partials_fixed_merge"}
PARTIALS = {**SPLIT, "entropy_reduce": "partials"}


def operands(entries: int = 512, rows: int = 12, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(entries + rows)
    logits = (5 * torch.randn(rows, entries, generator=generator)).to(dtype)
    return logits, torch.randint(0, entries, (rows,), generator=generator)


def gradient(logits, selected, **options):
    """Return dlogits for upstream gradients of 1, and the operator that made them."""
    leaf, operator = logits.clone().requires_grad_(), Ablation(**options)
    return torch.autograd.grad(operator(leaf, selected).sum(), leaf)[0], operator


def exact_gradient(logits, selected):
    """Return dlogits [N, V] in float64, by autograd through torch's own log_softmax."""
    leaf = logits.double().requires_grad_()
    return torch.autograd.grad(leaf.log_softmax(-1).gather(-1, selected[:, None]).sum(), leaf)[0]


@pytest.mark.parametrize("options", [{}, SPLIT, {**SPLIT, "reduce": "allreduce_partials"}, {"block_size": 5}])
@pytest.mark.parametrize("entries", [1, 2, 500, 49_152])
def test_the_analytic_gradient_is_that_of_float64(options, entries):
    """If this fails, softmax minus one-hot teaches another policy than the forward scores."""
    logits, selected = operands(entries, rows=4)
    logits[0, entries // 2] = logits[0].max()
    logits[1, selected[1]] = 60
    logits[2, logits[2] < 0] = -torch.inf
    found, _ = gradient(logits, selected, **options, **ANALYTIC)
    wanted = exact_gradient(logits, selected)
    usable = wanted.isfinite()
    assert usable.any() and (found.double() - wanted)[usable].abs().max() < 64 * EPS


@pytest.mark.parametrize("options", [{}, {"transform_chain": "temperature:0.7,soft_cap:5"}, {"padded_vocab_size": 16}])
def test_finite_differences_hold_for_value_and_log_sum_exp(options):
    """If this fails, one of the two outputs has the gradient of the other, or a transform has none."""
    logits, selected = operands(11, rows=3, dtype=torch.float64)
    for policy in ("mask", "include"):
        operator = Ablation(**options, vocab_padding_policy=policy, **ANALYTIC)
        leaf = (logits / 5).requires_grad_()
        assert torch.autograd.gradcheck(lambda rows, by=operator: by.values(rows, selected), leaf)


def test_probabilities_are_rounded_before_the_subtraction():
    """If this fails, digits are dropped somewhere else than grad_downcast_at=softmax says."""
    logits, selected = operands()
    logits[0, selected[0]] = 40  # p rounds to 1, and its gradient to 0
    found, operator = gradient(logits, selected, **ANALYTIC, grad_downcast_at="softmax")
    softmax = logits.double().softmax(-1)
    onehot = torch.nn.functional.one_hot(selected, logits.shape[1]).double()
    wanted = onehot - softmax.bfloat16().double()
    apart = (found.double() - wanted).abs()
    assert (apart <= EPS).double().mean() > 0.999, "a probability next to the middle of two may round to either"
    assert (apart <= NARROW * softmax + EPS).all()
    assert (found.double() - exact_gradient(logits, selected)).abs().max() > 100 * EPS
    assert operator.stated["options"]["grad_downcast_at"] == "softmax"


@pytest.mark.parametrize("implementation", ["autograd", "softmax_minus_onehot"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dlogits_are_rounded_where_they_leave(implementation, dtype):
    """If this fails, digits are dropped somewhere else than grad_downcast_at=dlogits says."""
    logits, selected = operands()
    options = {"backward_impl": implementation, "transform_chain": "temperature:0.7"}
    whole, _ = gradient(logits, selected, **options)
    found, operator = gradient(logits, selected, **options, grad_downcast_at="dlogits", downcast_dtype=dtype)
    assert torch.equal(found, whole.to(getattr(torch, dtype)).float())
    assert not torch.equal(found, whole)
    assert operator.stated["options"]["grad_downcast_at"] == "dlogits"


@pytest.mark.parametrize("place", ["never", "softmax", "dlogits"])
@pytest.mark.parametrize("implementation", ["autograd", "softmax_minus_onehot"])
def test_no_value_moves(implementation, place):
    """If this fails, an axis of the gradient changes a score."""
    logits, selected = operands()
    logits[3, 5] = torch.nan
    for options in ({}, PARTIALS, {**SPLIT, "downcast_at": "partials"}, {"downcast_at": "result"}):
        plain = Ablation(**options).values(logits, selected)
        moved = Ablation(**options, backward_impl=implementation, grad_downcast_at=place)
        for rows in (logits, logits.clone().requires_grad_()):
            for first, second in zip(plain, moved.values(rows, selected), strict=True):
                assert first.isnan().sum() == 1 and torch.equal(first.nan_to_num(), second.nan_to_num())


def test_only_a_backward_states_what_a_backward_did():
    """If this fails, a gradient that nobody took is read back as one that ran."""
    logits, selected = operands()
    operator = Ablation(**ANALYTIC, grad_downcast_at="dlogits")
    operator(logits, selected)
    assert not operator.stated["options"].keys() & SHOWN_BY.keys()
    leaf = logits.clone().requires_grad_()
    earlier = operator(leaf, selected)
    said = operator.stated["options"]
    operator(leaf, selected)
    assert not said.keys() & SHOWN_BY.keys()
    earlier.sum().backward()
    assert (said["backward_impl"], said["grad_downcast_at"]) == ("softmax_minus_onehot", "dlogits")
    assert not operator.stated["options"].keys() & SHOWN_BY.keys(), "the later call had no backward"


def test_a_softmax_that_the_graph_does_not_have_is_not_rounded():
    """If this fails, the graph's gradient is stated as one with rounded probabilities."""
    logits, selected = operands()
    whole, _ = gradient(logits, selected)
    found, operator = gradient(logits, selected, grad_downcast_at="softmax")
    assert torch.equal(found, whole)
    ran = operator.stated["options"]
    assert (ran["backward_impl"], ran["grad_downcast_at"]) == ("autograd", "never")


def test_an_ignored_row_learns_nothing():
    """If this fails, padding is trained on."""
    logits, selected = operands()
    selected[2] = -100
    found, _ = gradient(logits, selected, ignore_index=-100, **ANALYTIC)
    leaf = logits.clone().requires_grad_()
    Ablation(ignore_index=-100, **ANALYTIC)(leaf, selected).nansum().backward()
    assert not leaf.grad[2].any() and leaf.grad[3].any()
    assert torch.equal(leaf.grad, found)


@pytest.mark.parametrize("options", [{}, PARTIALS, {**PARTIALS, "reduce": "allreduce_partials"}])
@pytest.mark.parametrize("entries", [8, 500, 49_152])
def test_the_entropy_is_that_of_float64(options, entries):
    """If this fails, one way to reduce the entropy computes another quantity."""
    logits, _ = operands(entries, rows=5)
    logits[0, : entries // 2] = -torch.inf
    logits[1, 0] = 80
    wanted = Categorical(logits=logits.double().masked_fill(logits == -torch.inf, -1e9)).entropy()
    rounding = 4 * EPS * float(wanted.max() + logits[logits.isfinite()].abs().max())
    for order in ("global_vocab_shard_index", "reverse_vocab_shard_index", "pairwise_tree"):
        operator = Ablation(**options, merge_order=order)
        found = operator.entropy(logits)
        assert (found.double() - wanted).abs().max() <= rounding
        assert operator.stated["options"]["entropy_reduce"] == options.get("entropy_reduce", "logits")


def test_partial_sums_lose_the_digits_of_far_logits():
    """If this fails, `partials` is not the reduction over unshifted logits that trainers do."""
    logits, _ = operands(512)
    far = (logits * 16).round() / 16 + 4096  # exact in float32, and the same distribution
    wanted = Categorical(logits=(far - 4096).double()).entropy()
    whole, partials = (Ablation(**options).entropy(far).double() - wanted for options in ({}, PARTIALS))
    assert whole.abs().max() < 16 * EPS
    assert 4096 * EPS / 4 < partials.abs().max() < 16 * 4096 * EPS


def narrow(values):
    return values.float().bfloat16().double()


def test_partial_sums_are_rounded_as_the_ranks_hand_them_over():
    """If this fails, a downcast reaches the log probability of a row and not its entropy."""
    logits, _ = operands(512)
    found = Ablation(**PARTIALS, downcast_at="partials").entropy(logits).double()
    total, weighted = 0.0, 0.0
    highest = narrow(logits.amax(-1).double())
    for local in logits.double().chunk(8, dim=-1):
        top = local.amax(-1)
        terms = (local - top[:, None]).exp()
        scale = (narrow(top) - highest).exp()
        total = total + (1 + narrow(terms.sum(-1) - 1)) * scale
        weighted = weighted + narrow((terms * local).sum(-1)) * scale
    wanted = highest + total.log() - weighted / total
    assert (found - wanted).abs().max() < 1e-4
    assert (found - Categorical(logits=logits.double()).entropy()).abs().max() > 1e-2
    for options in ({}, PARTIALS):
        whole = Ablation(**options).entropy(logits)
        assert torch.equal(Ablation(**options, downcast_at="result").entropy(logits), whole.bfloat16().float())


def test_the_entropy_is_of_what_is_scored():
    """If this fails, value and entropy belong to two distributions."""
    logits, _ = operands(500, dtype=torch.float64)
    padded = torch.nn.functional.pad(logits, (0, 12))
    chain = {"transform_chain": "temperature:0.7"}
    cases = (
        ({"padded_vocab_size": 512}, logits),
        ({"padded_vocab_size": 512, "vocab_padding_policy": "include"}, padded),
        (chain, logits / 0.7),
        ({"head_dtype": "bfloat16"}, logits.bfloat16().double()),
    )
    for options, scored in cases:
        for reduce in ({}, PARTIALS):
            found = Ablation(**options, **reduce).entropy(logits)
            assert (found - Categorical(logits=scored).entropy()).abs().max() < 1e-12


def test_the_entropy_has_a_gradient_and_no_value_where_there_is_no_distribution():
    """If this fails, an entropy bonus trains on something else, or a broken row has an entropy."""
    logits, selected = operands(64, dtype=torch.float64)
    leaf = logits.clone().requires_grad_()
    wanted = torch.autograd.grad(Categorical(logits=leaf).entropy().sum(), leaf)[0]
    for options in ({}, PARTIALS):
        again = logits.clone().requires_grad_()
        found = torch.autograd.grad(Ablation(**options).entropy(again).sum(), again)[0]
        assert (found - wanted).abs().max() < 1e-12
        broken = logits.clone()
        broken[1, 3], broken[2], broken[4, 0] = torch.nan, -torch.inf, torch.inf
        assert Ablation(**options).entropy(broken).isnan().nonzero()[:, 0].tolist() == [1, 2, 4]
    with pytest.raises(UsageError, match="logits are"):
        Ablation().entropy(selected)


@pytest.mark.parametrize("place", ["logits", "partials", "result"])
def test_an_entropy_takes_back_nothing_that_the_call_stated(place):
    """If this fails, the column `entropy` makes an option of the values unobservable."""
    logits, selected = operands()
    for reduce in ({}, PARTIALS):
        operator = Ablation(**reduce, downcast_at=place)
        operator(logits, selected)
        before = dict(operator.stated["options"])
        operator.entropy(logits)
        after = dict(operator.stated["options"])
        assert before["downcast_at"] == place
        assert after.pop("entropy_reduce") == ("partials" if reduce else "logits")
        assert after == before


def test_one_rank_has_no_partials_to_merge():
    """If this fails, a reduction over ranks is read back where there is one rank."""
    logits, selected = operands()
    operator = Ablation(entropy_reduce="partials")
    operator(logits, selected)
    assert torch.equal(operator.entropy(logits), Ablation().entropy(logits))
    assert operator.stated["options"]["entropy_reduce"] == "logits"
    assert operator.stated["options"]["shift_convention"] == "pre_shifted", "the call before is still stated"

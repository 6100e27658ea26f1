"""Every diagnostic against a scalar formula in high precision, written without the code under test."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from decimal import Decimal, getcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from xcfg.comparison import CompareOutcome, compare
from xcfg.comparison import layout as layout_module
from xcfg.comparison.sums import k3
from xcfg.schema.contract import Contract
from xcfg.schema.result import EdgeResult

getcontext().prec = 60
Judge = Callable[..., CompareOutcome]
CLOSE = 1e-13


def mean(values: list[Decimal]) -> Decimal:
    return sum(values, Decimal(0)) / len(values)


def oracle(training: list[float], rollout: list[float]) -> dict[str, float]:
    """Figures of d = training - rollout in 60 decimal digits."""
    t, r = [Decimal(x) for x in training], [Decimal(x) for x in rollout]
    d = [a - b for a, b in zip(t, r, strict=True)]
    w = [x.exp() for x in d]
    mt, mr = mean(t), mean(r)
    cov = mean([(a - mt) * (b - mr) for a, b in zip(t, r, strict=True)])
    spread = [mean([(a - mt) ** 2 for a in t]).sqrt(), mean([(b - mr) ** 2 for b in r]).sqrt()]
    return {
        "mean_abs": float(mean([abs(x) for x in d])),
        "bias": float(mean(d)),
        "mismatch_kl": float(-mean(d)),
        "rms": float(mean([x * x for x in d]).sqrt()),
        "max_abs": float(max(abs(x) for x in d)),
        "ratio0": float(mean(w)),
        "approx_kl0": float(mean([a - 1 - x for a, x in zip(w, d, strict=True)])),
        "chi2": float(mean([x * x for x in w]) - 1),
        "ess": float(sum(w, Decimal(0)) ** 2 / (len(w) * sum((x * x for x in w), Decimal(0)))),
        "ppl_ratio": float((-mt).exp() / (-mr).exp()),
        "pearson": float(cov / (spread[0] * spread[1])),
        "clipfrac0": sum(not Decimal("0.8") <= x <= Decimal("1.2") for x in w) / len(w),
    }


def scores(count: int, spread: float, seed: int = 3) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    base = -rng.exponential(0.7, count) - 5.0 * spread  # log probabilities stay below 0
    training = (base + rng.normal(0.0, spread, count)).astype(np.float32)
    return training.astype(float).tolist(), (base + rng.normal(0.01, spread, count)).astype(np.float32).astype(
        float
    ).tolist()


def edge_of(outcome: CompareOutcome) -> EdgeResult:
    return outcome.comparison.edges["training_vs_rollout"]


@pytest.mark.parametrize(("count", "spread"), [(2, 0.1), (37, 0.02), (500, 0.3), (500, 1e-7), (300, 3.0)])
def test_every_figure_equals_its_formula(judge: Judge, count: int, spread: float) -> None:
    training, rollout = scores(count, spread)
    edge = edge_of(judge(training, rollout, store=np.float32))
    for name, expected in oracle(training, rollout).items():
        assert getattr(edge, name) == pytest.approx(expected, rel=CLOSE, abs=1e-25), name
    d = [abs(a - b) for a, b in zip(training, rollout, strict=True)]
    assert edge.mismatches == sum(x > 0.06 for x in d)
    assert edge.mismatch_ratio == edge.mismatches / count
    assert edge.active_tokens == count


def test_means_are_exactly_rounded(judge: Judge) -> None:
    training, rollout = scores(4001, 0.05)
    edge = edge_of(judge(training, rollout, store=np.float32))
    d = [a - b for a, b in zip(training, rollout, strict=True)]
    assert edge.mean_abs == float(sum(Fraction(abs(x)) for x in d) / 4001)
    assert edge.bias == float(sum(map(Fraction, d)) / 4001)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11, 1000, 1001])
def test_quantiles_are_linear(judge: Judge, count: int) -> None:
    training, rollout = scores(count, 0.2)
    edge = edge_of(judge(training, rollout, store=np.float32))
    d = sorted(abs(a - b) for a, b in zip(training, rollout, strict=True))
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)):
        place = share * (count - 1)
        low = math.floor(place)
        high = min(low + 1, count - 1)
        expected = d[low] + (d[high] - d[low]) * (place - low)
        assert getattr(edge, f"{name}_abs") == pytest.approx(expected, rel=1e-12), name


def test_a_hand_computed_case(judge: Judge) -> None:
    edge = edge_of(judge([-1.0, -2.0, -3.0, -4.0], [-1.5, -2.0, -2.75, -4.0]))
    assert (edge.mean_abs, edge.bias, edge.max_abs) == (0.1875, 0.0625, 0.5)
    assert edge.rms == math.sqrt(0.3125 / 4)
    assert (edge.mismatches, edge.mismatch_ratio, edge.clipfrac0) == (2, 0.5, 0.5)
    assert (edge.p50_abs, edge.p90_abs) == (0.125, pytest.approx(0.425))


def test_equal_scores_give_zeros(judge: Judge) -> None:
    edge = edge_of(judge([-1.0, -2.0, -0.0], [-1.0, -2.0, 0.0]))
    for name in ("max_abs", "mean_abs", "bias", "rms", "approx_kl0", "mismatch_kl", "chi2", "clipfrac0", "p999_abs"):
        value = getattr(edge, name)
        assert value == 0.0 and math.copysign(1.0, value) == 1.0, name
    assert (edge.ratio0, edge.ess, edge.ppl_ratio, edge.pearson) == (1.0, 1.0, 1.0, 1.0)


def test_overflow_and_undefined_are_none_never_nan(judge: Judge) -> None:
    edge = edge_of(judge([0.0, -1.0], [-800.0, -1.0]))
    assert (edge.ratio0, edge.approx_kl0, edge.chi2, edge.ess) == (None, None, None, None)
    assert edge.max_abs == 800.0 and edge.mean_abs == 400.0
    far = edge_of(judge([0.0, -1.0], [-400.0, -1.0]))
    assert far.ratio0 is not None and far.chi2 is None and far.ess is None, "only what overflows is lost"
    assert edge_of(judge([-1.0, -1.0], [-2.0, -3.0])).pearson is None, "a side that does not vary"
    assert edge_of(judge([-1.0], [-1.0])).pearson is None, "one token"
    huge = edge_of(judge([-1e200, -1.0], [0.0, -1.0]))
    assert huge.rms == pytest.approx(1e200 / math.sqrt(2)) and huge.ppl_ratio is None
    assert huge.mean_abs == 5e199
    tiny = edge_of(judge([1e-200, 0.0], [0.0, 0.0]))
    assert tiny.rms == pytest.approx(1e-200 / math.sqrt(2))
    vast = edge_of(judge([-1.7e308, -1.7e308, 0.0], [0.0, 0.0, 0.0]))
    assert vast.by_sequence[0].mean_abs == pytest.approx(1.7e308 / 1.5)
    assert vast.by_sequence[0].rms == pytest.approx(1.7e308 * math.sqrt(2 / 3))
    for item in (edge, far, huge, tiny, vast):
        for name in item.__struct_fields__:
            value = getattr(item, name)
            assert not isinstance(value, float) or math.isfinite(value), name
        assert all(value is None or math.isfinite(value) for value in item.aliases.values())


def test_k3_does_not_cancel() -> None:
    d = np.array([1e-12, -1e-9, 1e-5, 0.0, 2.0**-4, -(2.0**-4), 0.0624999, 0.3, -7.0, 30.0])
    expected = [float(Decimal(x).exp() - 1 - Decimal(x)) for x in d]
    np.testing.assert_allclose(k3(d, np.expm1(d)), expected, rtol=3e-15)


def test_chunks_do_not_move_a_bit(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    training, rollout = scores(700, 0.1)
    whole = judge(training, rollout, store=np.float32).comparison
    monkeypatch.setattr(layout_module, "CHUNK", 13)
    assert judge(training, rollout, store=np.float32).comparison == whole


def test_worst_tokens_and_their_ties(rollout_of: Any, table_of: Any, contract: Contract) -> None:
    rollout = rollout_of([5, 9], prompt=2)
    gaps = [0.5, 0.5, 0.25, 0.25, 0.125, -0.5, 0.0, 0.125, 0.125, -1.0]
    tables = {
        "training": table_of(rollout, "training", [0.0] * 10),
        "rollout_decode": table_of(rollout, "rollout_decode", [-gap for gap in gaps]),
    }
    worst = (
        compare(tables, rollout, contract, verdict_arm="rollout_decode").comparison.edges["training_vs_rollout"].worst
    )
    assert len(worst) == 10
    assert [(item.sequence, item.position) for item in worst[:5]] == [(1, 8), (0, 2), (0, 3), (1, 4), (0, 4)]
    first = worst[0]
    assert (first.token_id, first.first, first.second, first.difference) == (113, 0.0, 1.0, -1.0)


def test_ties_beyond_ten_go_to_the_lowest_place(judge: Judge) -> None:
    edge = edge_of(judge([0.5] * 40, [0.0] * 40))
    assert [item.position for item in edge.worst] == list(range(1, 11))


def test_aliases_equal_the_published_formulas(rollout_of: Any, table_of: Any, contract: Contract) -> None:
    rollout = rollout_of([12, 30, 4])
    training, decode = scores(43, 0.2)
    tables = {
        "training": table_of(rollout, "training", training, store=np.float32),
        "rollout_decode": table_of(rollout, "rollout_decode", decode, store=np.float32),
    }
    edge = compare(tables, rollout, contract, verdict_arm="rollout_decode").comparison.edges["training_vs_rollout"]
    d = [a - b for a, b in zip(training, decode, strict=True)]
    gaps = [abs(math.exp(a) - math.exp(b)) for a, b in zip(training, decode, strict=True)]
    cut = [slice(0, 11), slice(11, 40), slice(40, 43)]
    t = [-statistics.fmean(training[part]) for part in cut]
    r = [-statistics.fmean(decode[part]) for part in cut]
    k3s = [math.exp(x) - 1 - x for x in d]
    expected = {
        "areal/rollout_train_k3_kl.token_mean": statistics.fmean(k3s),
        "nemo-rl/gen_kl_error.token_mean": statistics.fmean(k3s),
        "nemo-rl/token_mult_prob_error.token_mean": statistics.fmean(math.exp(abs(x)) for x in d),
        "openrlhf/vllm_kl.token_mean": -statistics.fmean(d),
        "prime-rl/mismatch_kl/all/mean.token_mean": statistics.fmean(k3s),
        "prime-rl/mismatch_kl/all/max.token_max": max(k3s),
        "rl-kernel/max_abs_dlogp.token_max": max(map(abs, d)),
        "rl-kernel/mean_abs_dlogp.token_mean": statistics.fmean(map(abs, d)),
        "skyrl/policy/rollout_train_logprobs_abs_diff_max.token_max": max(map(abs, d)),
        "skyrl/policy/rollout_train_logprobs_abs_diff_mean.token_mean": statistics.fmean(map(abs, d)),
        "skyrl/policy/rollout_train_logprobs_abs_diff_min.token_min": min(map(abs, d)),
        "skyrl/policy/rollout_train_logprobs_abs_diff_std.token_std": statistics.stdev(map(abs, d)),
        "slime/train_rollout_logprob_abs_diff.token_mean": statistics.fmean(map(abs, d)),
        "slime/train_rollout_logprob_abs_diff.sequence_mean": statistics.fmean(
            statistics.fmean(map(abs, d[part])) for part in cut
        ),
        "trl/sampling/importance_sampling_ratio/max.token_max": math.exp(max(d)),
        "trl/sampling/importance_sampling_ratio/mean.token_mean": statistics.fmean(map(math.exp, d)),
        "trl/sampling/importance_sampling_ratio/min.token_min": math.exp(min(d)),
        "trl/sampling/sampling_logp_difference/max.token_max": max(map(abs, d)),
        "trl/sampling/sampling_logp_difference/mean.token_mean": statistics.fmean(map(abs, d)),
        "verl/rollout_corr/chi2_token.token_mean": statistics.fmean(math.exp(2 * x) for x in d) - 1,
        "verl/rollout_corr/k3_kl.token_mean": statistics.fmean(k3s),
        "verl/rollout_corr/kl.token_mean": statistics.fmean(b - a for a, b in zip(training, decode, strict=True)),
        "verl/rollout_corr/log_ppl_abs_diff.sequence_mean": statistics.fmean(
            abs(a - b) for a, b in zip(t, r, strict=True)
        ),
        "verl/rollout_corr/log_ppl_diff.sequence_mean": statistics.fmean(a - b for a, b in zip(t, r, strict=True)),
        "verl/rollout_corr/log_ppl_diff_max.sequence_max": max(a - b for a, b in zip(t, r, strict=True)),
        "verl/rollout_corr/log_ppl_diff_min.sequence_min": min(a - b for a, b in zip(t, r, strict=True)),
        "verl/rollout_corr/ppl_ratio.sequence_mean": statistics.fmean(
            math.exp(a - b) for a, b in zip(t, r, strict=True)
        ),
        "verl/rollout_corr/rollout_log_ppl.sequence_mean": statistics.fmean(r),
        "verl/rollout_corr/rollout_ppl.sequence_mean": statistics.fmean(map(math.exp, r)),
        "verl/rollout_corr/training_log_ppl.sequence_mean": statistics.fmean(t),
        "verl/rollout_corr/training_ppl.sequence_mean": statistics.fmean(map(math.exp, t)),
        "verl/training/rollout_actor_probs_pearson_corr.token": statistics.correlation(
            list(map(math.exp, training)), list(map(math.exp, decode))
        ),
        "verl/training/rollout_probs_diff_max.token_max": max(gaps),
        "verl/training/rollout_probs_diff_mean.token_mean": statistics.fmean(gaps),
        "verl/training/rollout_probs_diff_std.token_std": statistics.stdev(gaps),
    }
    assert set(edge.aliases) == set(expected)
    for name, value in expected.items():
        assert edge.aliases[name] == pytest.approx(value, rel=1e-11, abs=1e-15), name

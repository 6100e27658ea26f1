"""Downstream series: each statistic against another library or a case by hand, and files that are not what they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, wilcoxon
from xcfg.errors import ConfigError
from xcfg_analysis.rules.downstream import (
    FEWEST,
    Series,
    Trajectory,
    changes,
    collapse,
    pettitt,
    rank_severity,
)
from xcfg_analysis.rules.series_file import read_series


def trajectory(**metrics):
    return Trajectory({name: (np.arange(len(v)), np.asarray(v, dtype=float)) for name, v in metrics.items()})


@pytest.mark.parametrize("seed", range(6))
def test_pettitt_is_the_largest_mann_whitney_statistic(seed):
    """Oracle: scipy's U at every split; K = |2 U - t (n - t)|."""
    values = np.random.default_rng(seed).normal(size=23).round(1)
    values[14:] += seed / 3
    split, p = pettitt(values)
    distance = [abs(2 * mannwhitneyu(values[:t], values[t:]).statistic - t * (23 - t)) for t in range(1, 23)]
    assert distance[split - 1] == pytest.approx(max(distance))
    assert p == pytest.approx(min(1.0, 2 * np.exp(-6 * max(distance) ** 2 / (23**3 + 23**2))))


def test_a_perfect_step_needs_eleven_values():
    """By hand: n = 10 in two halves has K = 25, p = 2 exp(-3750 / 1100) = 0.066; n = 11 has K = 30, p = 0.049."""
    for count, p in ((10, 0.0661), (11, 0.0485)):
        assert pettitt(np.arange(count) >= count // 2)[1] == pytest.approx(p, abs=2e-4)
    assert FEWEST == 11
    step = [0.0] * 5 + [1.0] * 6
    (found,) = changes(trajectory(reward=step))
    assert (found.step, found.moves, found.worse) == (5, True, False)
    assert changes(trajectory(reward=step[1:])) == ()


def test_noise_moves_as_rarely_as_the_level_says():
    """Pettitt's p is conservative: of 400 series without a change at most 5 % move, within binomial error."""
    draws = np.random.default_rng(7).normal(size=(400, 50))
    assert sum(pettitt(row)[1] < 0.05 for row in draws) <= 20 + 3 * np.sqrt(400 * 0.05 * 0.95)


def test_a_ratio_counts_by_its_distance_from_1():
    for sign in (1, -1):
        (found,) = changes(trajectory(ratio=[1.0] * 10 + [1.0 + sign * 0.3] * 10))
        assert found.moves and found.worse and found.step == 10


def test_a_collapse_needs_both_limbs():
    up, down = [float(i) for i in range(30)], [30.0 - 2 * i for i in range(15)]
    assert collapse(trajectory(reward=up + down))
    assert collapse(trajectory(reward=up + down)).step == pytest.approx(30, abs=3)
    calm = {
        "it only rises": up,
        "it only falls": down + down,
        "it hovers": up + [29.0, 28.5] * 8,
        "it jumps and never rose": [1.0 - 0.02 * i for i in range(15)] + [3.0] * 5 + [3.0 - 0.3 * i for i in range(15)],
        "it drops once and recovers": up + [5.0 + 0.05 * i for i in range(20)],
        "it falls by less than half of the rise": up + [29.0 - 0.1 * i for i in range(20)],
    }
    for why, values in calm.items():
        assert not collapse(trajectory(reward=values)), why
    assert collapse(trajectory(reward=up[:10])) is None
    assert collapse(trajectory(kl=up + down)) is None


def test_cases_and_metrics_are_one_family():
    """By hand, Holm: the smallest of four p values counts four times, and no later one less than it."""
    random = np.random.default_rng(5)
    base = {name: random.normal(size=40) for name in ("reward", "kl")}
    shift = {"A1": 0.3, "A2": 0.8}
    cases = {
        name: {"reward": base["reward"] - by + random.normal(size=40) / 2, "kl": base["kl"]}
        for name, by in shift.items()
    }
    told = rank_severity(Series({"A0": trajectory(**base)} | {name: trajectory(**m) for name, m in cases.items()}))
    assert [item.case for item in told[:2]] == ["A2", "A1"] and len(told) == 4
    assert told[0].adjusted == pytest.approx(4 * told[0].p)
    assert told[1].adjusted == pytest.approx(max(3 * told[1].p, told[0].adjusted))


def test_severity_is_wilcoxon_over_blocks():
    """Oracle: scipy on the block means of 32 steps, two steps each."""
    random = np.random.default_rng(3)
    base, case = random.normal(size=32), random.normal(size=32) - 1.0
    (found,) = rank_severity(Series({"A0": trajectory(reward=base), "A3": trajectory(reward=case)}))
    means = (case - base).reshape(16, 2).mean(axis=1)
    assert found.p == pytest.approx(wilcoxon(-means, alternative="greater").pvalue)
    assert found.shift == pytest.approx(means.mean()) and found.effect == pytest.approx(
        -means.mean() / base.std(ddof=1)
    )
    assert found.worse and found.adjusted == found.p


def test_the_worst_comes_first_and_better_is_not_worse():
    steps = np.sin(np.arange(40))
    told = Series(
        {
            "A0": trajectory(reward=steps, kl=steps),
            "A1": trajectory(reward=steps - 0.1, kl=steps),
            "A2": trajectory(reward=steps + 5.0, kl=steps + 2.0),
        }
    )
    found = rank_severity(told)
    assert [(item.case, item.metric) for item in found[:2]] == [("A2", "kl"), ("A1", "reward")]
    assert [item.worse for item in found] == [True, True, False, False]
    assert rank_severity(Series({"A1": trajectory(reward=steps)})) == ()
    few = {name: trajectory(reward=steps[:15]) for name in ("A0", "A1")}
    assert rank_severity(Series(few)) == ()


def test_both_kinds_of_file_say_the_same(tmp_path):
    rows = [("A0", 1, s, i, 0.5 * i, 1.0) for s in (0, 1) for i in (2, 0, 1)]
    csv, jsonl = tmp_path / "s.csv", tmp_path / "s.jsonl"
    csv.write_text("case,seed,step,reward,kl\n" + "".join(f"{c},{s},{i},{r + s},{k}\n" for c, _, s, i, r, k in rows))
    jsonl.write_text(
        "".join(
            f'{{"case": "{c}", "seed": {s}, "step": {i}, "reward": {r + s}, "kl": {k}}}\n' for c, _, s, i, r, k in rows
        )
    )
    for path in (csv, jsonl):
        steps, values = read_series(path).cases["A0"].metrics["reward"]
        assert steps.tolist() == [0, 1, 2] and values.tolist() == [0.5, 1.0, 1.5]
    assert any("fewer than 11" in text for text in read_series(csv).remarks)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("step,reward\n1,nan\n", "no finite number"),
        ("step,reward\n1,high\n", "no number"),
        ("step,reward\n1,2\n1,3\n", "stands twice"),
        ("step,reward\n1.5,2\n", "no integer"),
        ("step,reward\n1e30,2\n", "no integer up to"),
        ("step,reward\n1,1e308\n", "its square is not finite"),
        ("step,reward,reward\n1,2,3\n", "column 'reward' stands twice"),
        ("reward\n2\n", "step is None"),
        ("step,rewards\n1,2\n", "reward"),
        ("step,reward\n1\n", "cells"),
        ("step,reward\n1,\n", "no value"),
        ("", "no value"),
    ],
)
def test_a_series_that_is_none_is_refused_with_its_line(text, told, tmp_path):
    """Failing means that a collapse that logged NaN is read as health."""
    path = tmp_path / "s.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_series(path)


@pytest.mark.parametrize(
    "text",
    [
        "[1]\n",
        '{"step": 1, "reward": 1, "case": {"a": 1}}\n',
        '{"step": true, "reward": 1}\n',
        '{"step": 1, "reward": NaN}\n',
        "x\n",
    ],
)
def test_lines_that_are_no_row_are_refused(text, tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="line 1"):
        read_series(path)
    with pytest.raises(ConfigError, match="kind of series file"):
        read_series(tmp_path.joinpath("s.parquet").absolute() if path.rename(tmp_path / "s.parquet") else path)

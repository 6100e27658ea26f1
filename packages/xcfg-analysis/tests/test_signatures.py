"""Every signature on real scores: its fault planted, its look-alike, smaller sizes, missing columns, two at once."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from xcfg.dumps import collect
from xcfg_analysis.catalogue import SIGNATURES
from xcfg_analysis.recognise import recognise
from xcfg_analysis.tokens import active_tokens

NAMES = [item.name for item in SIGNATURES]
SEEDS = range(4)
FEW_SEQUENCES = {"some-ranks", "growth-with-version"}
"""On nine long sequences a rank or a version has two: whole sequences are the draws, so nothing can be claimed."""


def draws(plants, seeds=SEEDS):
    for name in plants.sets():
        for seed in seeds:
            yield plants.draw(seed, name, 0.75)


def test_every_signature_has_a_plant_and_a_look_alike(plants):
    """Failing means that a signature was added that nobody has seen to find anything."""
    assert set(plants.PLANTS) == set(plants.LOOK_ALIKES) == set(NAMES)


def test_the_natural_drift_is_what_the_tests_say(plants):
    """Failing means that the recorded scores are others: mean |d| of eager against sdpa is about 0.04."""
    for of in plants.sets():
        it = plants.draw(0, of, 1.0)
        assert 0.02 < np.abs(it.natural).mean() < 0.08
        assert len(it.row) > 2000


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_fault_is_named_first(name, plants, names):
    """Failing means that a fault of full size is missed, or that another one is named in its place."""
    for it in draws(plants):
        plants.PLANTS[name](it, 1.0)
        found = names(it.table())
        if it.of == "long" and name in FEW_SEQUENCES:
            assert set(found) <= {name}, (it.of, name)
        else:
            assert found[:1] == [name], (it.of, name)


@pytest.mark.parametrize("name", NAMES)
def test_its_look_alike_is_not(name, plants, names):
    """Failing means that the signature fires on what only resembles its fault."""
    for it in draws(plants):
        plants.LOOK_ALIKES[name][1](it)
        assert name not in names(it.table()), it.of


@pytest.mark.parametrize("size", [0.5, 0.25])
@pytest.mark.parametrize("name", NAMES)
def test_a_smaller_fault_is_named_or_missed_and_nothing_else(name, size, plants, names):
    """Failing means that a weak fault is taken for another one."""
    for it in draws(plants):
        plants.PLANTS[name](it, size)
        assert set(names(it.table())) <= {name}, it.of


@pytest.mark.parametrize(
    "name", ["temperature", "truncated-softmax", "padded-vocabulary", "some-ranks", "growth-with-version"]
)
def test_without_its_column_it_says_so(name, plants, tried):
    """Failing means that a signature guesses where it cannot know."""
    it = plants.draw(0)
    plants.PLANTS[name](it, 1.0)
    it.without = plants.OPTIONAL_OF[name]
    found = recognise(active_tokens(it.table()), tried)
    assert name not in [item.descriptor.name for item in found.named]
    assert plants.OPTIONAL_OF[name][0] in found.insufficient[name]


def test_bf16_log_softmax_needs_no_column(plants, names):
    it = plants.draw(0)
    plants.bf16_log_softmax(it, 1.0)
    it.without = ("logsumexp",)
    assert names(it.table())[:1] == ["bf16-log-softmax"]


def test_a_truncated_softmax_without_its_column_is_pointed_at(plants, tried):
    """Failing means that a person is not told which column would settle it."""
    it = plants.draw(0, share=1.0)
    plants.truncated(it, 1.0)
    it.without = ("kept_mass",)
    found = recognise(active_tokens(it.table()), tried)
    assert "leans to one side" in found.insufficient["truncated-softmax"]


def test_a_tail_without_entropy_says_what_else_it_may_be(plants, tried):
    """Failing means that a temperature reads as a tail, and nobody is told which column tells them apart."""
    for without, told in ((("entropy",), True), ((), False)):
        it = plants.draw(0)
        plants.PLANTS["low-probability-tail"](it, 1.0)
        it.without = without
        (found,) = recognise(active_tokens(it.table()), tried).named
        assert found.descriptor.name == "low-probability-tail"
        assert ("--columns entropy" in found.fit.refuted_by) is told


def test_two_faults_at_once_are_both_named(plants, names):
    """Failing means that one fault hides another."""
    for first, second in plants.PAIRS:
        for it in draws(plants, seeds=range(2)):
            plants.PLANTS[first](it, 1.0)
            plants.PLANTS[second](it, 1.0)
            found = set(names(it.table()))
            assert found and found <= {first, second}, (it.of, first, second)
            assert it.of == "long" or found == {first, second}, (first, second)


def clean_draws():
    tools = Path(__file__).resolve().parents[3] / "tools"
    spec = importlib.util.spec_from_file_location("calibrate_signatures", tools / "calibrate_signatures.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["calibrate_signatures"] = module
    spec.loader.exec_module(module)
    return module.clean


def test_clean_drift_accuses_nobody(plants, tried):
    """Failing means that honest rounding is called a fault. 200 draws of sequences the calibration never saw."""
    clean = clean_draws()
    for of in plants.sets():
        for seed in range(5000, 5200):
            found = recognise(clean(plants, seed, 1, of), tried)
            assert [item.descriptor.name for item in found.named] == [], (of, seed)


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "student"])
def test_unstructured_noise_accuses_nobody(kind, plants, names):
    """Failing means that any large enough difference is called a fault. 70 draws of each kind, 210 in all."""
    for of in plants.sets():
        for seed in range(70):
            assert names(plants.noisy(seed, kind, of).table()) == [], (of, seed)


@pytest.mark.parametrize("value", [0.0, -1.0, -20.0, -100.0, -9999.0])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("side", ["train", "roll"])
def test_a_placeholder_is_named_whatever_its_value_and_share(side, share, value, plants, names):
    """Failing means that the commonest logging fault of all is called an unknown drift."""
    it = plants.draw(1, share=1.0)
    scores = getattr(it, side)
    scores[it.rng.random(len(scores)) < share] = value
    assert names(it.table())[:1] == ["fills"]


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_the_scale_of_clean_drift_does_not_matter(factor, plants, names):
    """Failing means that a model with larger honest rounding is accused for its size."""
    for it in draws(plants):
        it.stretch(factor)
        assert names(it.table()) == []


def test_sides_may_be_exchanged(plants, names):
    """Failing means that a fault is only found on the rollout side."""
    for name in ("temperature", "lag", "fills", "dyadic-grid", "bf16-log-softmax", "constant-bias", "last-token"):
        it = plants.draw(0)
        plants.PLANTS[name](it, 1.0)
        it.train, it.roll = it.roll, it.train
        assert names(it.table())[:1] == [name]


def test_fitted_parameters_are_what_was_planted(plants, tried):
    """Failing means that the name is right and the number is not."""

    def parameters(name, size=1.0):
        it = plants.draw(0, share=1.0)
        plants.PLANTS[name](it, size)
        found = recognise(active_tokens(it.table()), tried).named[0]
        return found.fit.parameters

    assert parameters("constant-bias")["bias_nats"] == pytest.approx(0.1, abs=0.02)
    assert parameters("truncated-softmax")["factor"] == pytest.approx(1.0, abs=0.1)
    assert parameters("lag")["lag"] == -1.0
    assert parameters("block-boundary")["boundary"] == 64.0
    assert parameters("last-token")["shift_nats"] == pytest.approx(1.0, abs=0.15)
    assert parameters("temperature", 0.25)["slope"] == pytest.approx(0.95 - 1, abs=0.01)
    assert parameters("some-ranks")["ratio"] == pytest.approx(4.0, rel=0.3)


@pytest.mark.parametrize("values", [(-0.5,), (-0.5, -0.25)], ids=["one value", "two values"])
def test_a_handful_of_values_that_lie_on_every_grid_accuse_nobody(names, values):
    """Failing means that somebody who tries xcfg on made-up numbers is told of a fault with certainty."""
    rng = np.random.default_rng(0)
    count = 24
    batch = {
        "sample_id": np.array(["a"] * count),
        "position": np.arange(count),
        "token_id": np.arange(count),
        "active": np.arange(count) > 0,
        "logp_rollout": rng.choice(values, count).astype(np.float32),
        "logp_train": rng.uniform(-3.0, -0.1, count).astype(np.float32),
    }
    assert not {"dyadic-grid", "bf16-log-softmax"} & set(names(collect([batch])))

"""What a converted model scores, against Hugging Face transformers: the one oracle that shares no code with us."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import mcore_hf
import pytest
import torch
from mcore_inputs import random_rollout
from xcfg.identity.rollout import read_rollout
from xcfg.plugin.manager import PluginManager
from xcfg.plugin.operators import load_factory

MODELS = [(512, False), (512, True), (500, False), (500, True)]
FLOAT32 = 1e-5
FLOAT64 = 1e-10
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("megatron") is None, reason="Megatron-core is not installed"),
]


def name(vocabulary, tied):
    return f"v{vocabulary}-{'tied' if tied else 'untied'}"


@pytest.fixture(scope="module")
def ranked(lab, job):
    """Answers of four models, by number of ranks: one launch each."""
    jobs = [job(name(*model), {}, vocabulary=model[0], tied=model[1]) for model in MODELS]
    wide = [{**item, "name": f"{item['name']}-64", "float64": True} for item in jobs]
    two = [{**item, "knobs": {**item["knobs"], "training.tensor_parallel_size": 2}} for item in jobs]
    return {1: lab.run(jobs + wide), 2: lab.run(two, world=2)}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("vocabulary", "tied"), MODELS)
def test_float32_is_transformers_to_five_digits(ranked, job, vocabulary, tied, ranks):
    """If this fails, a weight lies in the wrong place, or the padded vocabulary takes part."""
    task = job("x", vocabulary=vocabulary, tied=tied)
    expected = mcore_hf.values(task["checkpoint"], torch.float32, read_rollout(Path(task["rollout"])))
    for rank in range(ranks):
        found = ranked[ranks][rank][name(vocabulary, tied)].values
        assert float((found.double() - expected).abs().max()) < FLOAT32
    assert float(expected.std()) > 0.1, "logits this flat would hide a wrong layout"


@pytest.mark.slow
@pytest.mark.parametrize(("vocabulary", "tied"), MODELS)
def test_float64_is_transformers_to_ten_digits(ranked, job, vocabulary, tied):
    """If this fails, the two models are not the same function; at float32 that could still look like rounding.

    Both build their rotary tables in float32, from the same formula, so that these are equal.
    """
    task = job("x", vocabulary=vocabulary, tied=tied)
    expected = mcore_hf.values(task["checkpoint"], torch.float64, read_rollout(Path(task["rollout"])))
    found = ranked[1][0][f"{name(vocabulary, tied)}-64"].values
    assert found.dtype == torch.float64
    assert float((found - expected).abs().max()) < FLOAT64, float((found - expected).abs().max())


@pytest.mark.slow
def test_a_pretrained_model_is_as_close_as_float32_is(lab, tmp_path):
    """If this fails, a real Llama of 30 layers with grouped queries is converted wrongly.

    The bound is three times what float32 itself costs: the distance of transformers in float32 from float64.
    """
    record = PluginManager.load(environ={}).checkpoint("smollm2-135m").record
    folder = tmp_path / "smollm2"
    folder.mkdir()
    load_factory(record.factory)(folder)
    rollout = random_rollout(49_152, (24, 17), 1)
    task = {"name": "smollm2", "checkpoint": str(folder), "rollout": lab.rollout(rollout)}
    answer = lab.run([{**task, "knobs": {"training.compute_dtype": "float32"}}])[0]["smollm2"]
    narrow, wide = (mcore_hf.values(folder, dtype, rollout) for dtype in (torch.float32, torch.float64))
    budget = float((narrow - wide).abs().max())
    distance = float((answer.values.double() - narrow).abs().max())
    assert 0 < budget < 1e-3
    assert distance <= 3 * budget, f"{distance:.2e} against a budget of {budget:.2e}"

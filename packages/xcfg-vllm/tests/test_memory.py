"""What prompt log probabilities will take, by hand, and what is refused for it; a real engine is in suite_knobs.py."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from xcfg.errors import LaunchError
from xcfg.schema.worker import PROTOCOL, WorkerSpec
from xcfg_vllm import memory
from xcfg_vllm.build import check_shape
from xcfg_vllm.memory import peak_bytes, plan_memory
from xcfg_vllm.options import parse_options

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        # 1,024 rows of 1,024 columns are 2^20 values; the request before has half as many
        ({"dtype": "bfloat16", "runner": "v1"}, (2 + 4 + 4) * MIB + 4 * MIB // 2),
        ({"dtype": "float32", "runner": "v1"}, (4 + 4) * MIB + 4 * MIB // 2),
        ({"dtype": "float16", "runner": "v1"}, (2 + 4 + 4) * MIB + 4 * MIB // 2),
        ({"dtype": "bfloat16", "runner": "v1", "lengths": [1025]}, (2 + 4 + 4) * MIB),
        ({"dtype": "bfloat16", "runner": "v1", "lengths": [513, 9, 1025]}, (2 + 4 + 4) * MIB + 4 * MIB // 2),
        ({"dtype": "float32", "runner": "v1", "vocabulary": 1000}, (4 + 4 + 4) * MIB + 4 * MIB // 2),
        ({"dtype": "bfloat16", "runner": "v1", "step": 256}, (2 + 4 + 4) * MIB // 4),
        ({"dtype": "bfloat16", "runner": "v1", "step": 1280}, (2 + 4 + 4) * MIB + 4 * MIB // 4),
        ({"dtype": "bfloat16", "runner": "v2"}, 2 * MIB),
        ({"dtype": "float32", "runner": "v2", "step": 512}, 4 * MIB // 2),
        ({"dtype": "bfloat16", "runner": "v2", "lengths": [101, 155]}, 2 * MIB // 4),
        ({"dtype": "bfloat16", "runner": "v2", "ranks": 2}, 5 * MIB),
        ({"dtype": "float32", "runner": "v1", "ranks": 2}, (4 + 4) * MIB // 2 + (4 + 4 + 2) * MIB),
        ({"dtype": "bfloat16", "runner": "v1", "lengths": [1]}, 0),
    ],
)
def test_the_peak_by_hand(named, expected):
    """Failing means that an engine is built which ends in the middle of a score, or is refused though it fits."""
    given = {"lengths": [1025, 513], "vocabulary": 1024, **named}
    assert peak_bytes(**given) == expected


def planned(
    tmp_path,
    *,
    devices=("cpu",),
    limit=None,
    lengths=(1025, 513),
    knobs=None,
    options=None,
    step=None,
    config=None,
    **more,
):
    """The plan for a checkpoint of 1 MiB in bfloat16 with 1,024 entries of vocabulary."""
    (tmp_path / "config.json").write_text(json.dumps(config or {"vocab_size": 1024, "dtype": "bfloat16"}))
    (tmp_path / "model.safetensors").write_bytes(bytes(MIB))
    spec = WorkerSpec(
        protocol=PROTOCOL,
        runtime="vllm",
        adapter="",
        side="rollout",
        knobs=knobs or {},
        options={},
        operators={},
        checkpoint=str(tmp_path),
        checkpoint_uri="",
        rollout="x",
        world_size=len(devices),
        devices=devices,
        memory_bytes=limit,
    )
    arguments = {"dtype": "float32", "max_num_batched_tokens": step, **more}
    return plan_memory(spec, lengths, arguments, parse_options(options or {}))


NEEDED = GIB + 2 * MIB + 10 * MIB
"""A cache of 1 GiB, the weights in float32, and the peak by hand."""


def test_on_a_cpu_all_of_it_must_fit_into_the_machine_or_the_budget(tmp_path):
    found = planned(tmp_path, limit=NEEDED)
    assert (found.prompt_logprobs, found.weights, found.cache) == (10 * MIB, 2 * MIB, GIB)
    assert found.facts["available"] == NEEDED and found.gpu_memory_utilization is None
    with pytest.raises(LaunchError) as error:
        planned(tmp_path, limit=NEEDED - 1)
    assert "cache 1.00 GiB, prompt log probabilities 0.01 GiB" in str(error.value)
    assert "The longest sequence has 1025 tokens" in str(error.value)
    assert planned(tmp_path, limit=NEEDED - 1, step=128).prompt_logprobs == MIB, "in pieces it fits"
    assert planned(tmp_path, limit=None).available is None, "where nobody says how much there is, nothing is refused"
    with pytest.raises(LaunchError):
        planned(tmp_path, limit=NEEDED, devices=("cpu", "cpu"))


def test_the_language_model_of_several_parts_is_the_one_that_counts(tmp_path):
    """Failing means that such a checkpoint, which vLLM builds, ends as LAUNCH_FAILED: KeyError."""
    parts = {"vocab_size": 7, "text_config": {"vocab_size": 1024, "dtype": "bfloat16", "num_key_value_heads": 3}}
    assert planned(tmp_path, config=parts).facts == planned(tmp_path).facts
    assert planned(tmp_path, config={"dtype": "bfloat16"}, limit=1) is None, "nothing can be reckoned"
    (tmp_path / "config.json").write_text(json.dumps(parts))
    with pytest.raises(LaunchError, match="3 key-value heads do not divide over 2"):
        check_shape(tmp_path, 2)


def test_where_nobody_sets_the_tokens_of_a_step_they_are_vllm_s_own(tmp_path, device):
    """Failing means that a long rollout is refused which vLLM cuts into pieces, or one taken that it may not cut."""
    assert planned(tmp_path, lengths=[9001]).prompt_logprobs == 4096 * 1024 * 8
    assert planned(tmp_path, lengths=[9001], enable_chunked_prefill=False).prompt_logprobs == 9000 * 1024 * 8
    assert planned(tmp_path, lengths=[9001], step=1000).prompt_logprobs == 1000 * 1024 * 8
    device((900, 1000))
    assert planned(tmp_path, lengths=[20001], devices=("cuda:0",)).prompt_logprobs == 16384 * 1024 * 8


@pytest.fixture
def device(monkeypatch):
    """Say what nvidia-smi would print; return the commands that were run."""

    def say(*rows):
        seen = []

        def run(command, **_):
            seen.append(command)
            return SimpleNamespace(stdout="".join(f"{free}, {total}\n" for free, total in rows))

        monkeypatch.setattr(memory.subprocess, "run", run)
        return seen

    return say


@pytest.mark.parametrize(
    ("free", "share"),
    [(99, 0.6), (70, 0.6), (69, 0.59), (20, 0.1)],
)
def test_on_a_gpu_the_share_is_lowered_until_it_fits(tmp_path, device, free, share):
    """The peak is 10 MiB of a device of 100 MiB, of which vLLM is to take 0.6."""
    device((free, 100))
    found = planned(tmp_path, devices=("cuda:0",))
    assert (found.gpu_memory_utilization, found.available, found.cache) == (share, free * MIB, 0)


def test_a_gpu_on_which_it_cannot_fit_is_refused(tmp_path, device):
    device((11, 100))
    with pytest.raises(LaunchError, match=r"does not fit: weights 0\.00 GiB, prompt log probabilities 0\.01 GiB"):
        planned(tmp_path, devices=("cuda:0",))
    assert planned(tmp_path, devices=("cuda:0",), knobs={"rollout.model_runner": "v2"}).gpu_memory_utilization == 0.07


def test_the_fullest_device_decides_and_those_that_the_engine_sees_are_asked(tmp_path, device, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    commands = device((90, 100), (65, 100))
    found = planned(tmp_path, devices=("cuda:0", "cuda:1"))
    assert (found.available, found.gpu_memory_utilization) == (65 * MIB, 0.51)
    assert commands[0][-2:] == ["-i", "4,7"]


def test_a_cache_that_is_given_leaves_the_share_alone(tmp_path, device):
    device((1100, 2000))
    found = planned(tmp_path, devices=("cuda:0",), options={"kv_cache_gib": 1})
    assert (found.cache, found.gpu_memory_utilization) == (GIB, 0.6)
    device((1030, 2000))
    with pytest.raises(LaunchError, match=r"cache 1\.00 GiB"):
        planned(tmp_path, devices=("cuda:0",), options={"kv_cache_gib": 1})


@pytest.mark.parametrize("output", ["", "[N/A], [N/A]\n"])
def test_a_device_of_which_nobody_knows_the_memory_is_taken_as_it_is(tmp_path, monkeypatch, output):
    monkeypatch.setattr(memory.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=output))
    found = planned(tmp_path, devices=("cuda:0",))
    assert (found.available, found.gpu_memory_utilization, found.prompt_logprobs) == (None, 0.6, 10 * MIB)

"""One real engine for the whole session, a tiny checkpoint, a frozen rollout of random tokens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from xcfg.identity.rollout import Rollout, make_rollout, write_rollout
from xcfg.schema.identity import CheckpointRef, SamplingRecord
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.worker import PROTOCOL, ScoreRequest, WorkerSpec

LENGTHS, PROMPTS = (17, 33, 12, 25), (5, 40 - 33, 3, 9)
KNOBS: dict[str, Any] = {
    "weights.path": "load",
    "rollout.enable_chunked_prefill": True,
    "rollout.logprobs_mode": "raw_logprobs",
    "rollout.model_runner": "v1",
    "rollout.batch_invariant": False,
    "batch.size": 4,
    "batch.padding_side": "right",
    "batch.packing": False,
    "logp.backend": "native",
    "rollout.attention_backend": "model_default",
    "rollout.block_size": 64,
    "rollout.dtype": "float32",
    "rollout.enable_prefix_caching": False,
    "rollout.enforce_eager": True,
    "rollout.kv_cache_dtype": "auto",
    "rollout.max_num_batched_tokens": 2048,
    "rollout.max_num_seqs": 3,
    "rollout.tensor_parallel_size": 1,
    "rollout.context_parallel_size": 1,
}


def sample(
    vocabulary: int = 500,
    *,
    mode: str = "raw_logprobs",
    lengths: tuple[int, ...] = LENGTHS,
    prompts: tuple[int, ...] = PROMPTS,
    shared: int = 0,
) -> Rollout:
    """Return sequences of random ids; all tokens after the prompt are active. shared: tokens that all begin with."""
    ids = np.random.default_rng(0).integers(3, vocabulary, sum(lengths))
    for start in np.cumsum((0, *lengths))[:-1]:
        ids[start : start + shared] = ids[:shared]
    positions = np.concatenate([np.arange(length) for length in lengths])
    active = np.concatenate([np.arange(n) >= p for n, p in zip(lengths, prompts, strict=True)])
    return make_rollout(
        {
            "token_ids": ids,
            "offsets": np.concatenate(([0], np.cumsum(lengths))),
            "active_mask": active,
            "attention_mask": np.ones(len(ids), dtype=bool),
            "position_ids": positions,
            "selected_token_ids": ids,
            "segment": active.astype(np.int8),
            "weight_version": np.zeros(len(ids), dtype=np.int32),
        },
        checkpoint=CheckpointRef(uri="builtin:test"),
        sampling=SamplingRecord(logprobs_mode=mode),
    )


@pytest.fixture(scope="session")
def rollout() -> Rollout:
    return sample()


def save_tiny(folder: Path, vocabulary: int) -> Path:
    """Save a tiny Qwen3 with one negative zero among its weights, and peaky logits; return `folder`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(1.0 + 0.2 * torch.randn_like(parameter))
            elif "embed_tokens" not in name:
                parameter.mul_(4.0)
        model.model.layers[0].mlp.down_proj.weight[0, 0] = -0.0
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of 500 vocabulary entries."""
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny", 500)


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rollout]:
    """The model with 32,768 vocabulary entries, and two sequences whose logits fill memory that can be measured."""
    folder = save_tiny(tmp_path_factory.mktemp("model") / "wide", 32768)
    return folder, sample(32768, lengths=(600, 800), prompts=(590, 790))


BINDINGS = {"selected_logprob": ("vllm.sampler_logprobs", "xcfg_vllm.native:engine_owned")}
"""Operation -> (backend id, factory)."""


@contextlib.contextmanager
def live_engine(
    checkpoint: Path, rollout: Rollout, scratch: Path, *, operators: dict[str, tuple[str, str]] | None = None, **changed
) -> Iterator[Any]:
    """Yield a live adapter in this process: (adapter, build report, spec). changed: knobs, `.` written as `__`."""
    from xcfg.plugin.protocols import RankContext
    from xcfg.schema.runtime import PlacementRequest
    from xcfg_vllm.adapter import VllmAdapter
    from xcfg_vllm.placement import placement

    write_rollout(rollout, scratch / "rollout")
    options = {"threads": 1, **changed.pop("options", {})}
    knobs = {**KNOBS, **{name.replace("__", "."): value for name, value in changed.items()}}
    place = placement(PlacementRequest(side="rollout", knobs=knobs, options=options, devices=("cpu",)))
    os.environ.update(place.env)
    bindings = {
        operation: OperatorBinding(
            operation=operation, side="rollout", requested="native", backend_id=backend, factory=factory
        )
        for operation, (backend, factory) in {**BINDINGS, **(operators or {})}.items()
    }
    spec = WorkerSpec(
        protocol=PROTOCOL,
        runtime="vllm",
        adapter="",
        side="rollout",
        knobs=knobs,
        options=options,
        operators=bindings,
        checkpoint=str(checkpoint),
        checkpoint_uri="builtin:test",
        rollout=str(scratch / "rollout"),
        world_size=1,
    )
    adapter = VllmAdapter()
    context = RankContext(rank=0, world_size=1, device="cpu", scratch=scratch, rendezvous="")
    built = adapter.build(spec, context)
    try:
        yield SimpleNamespace(adapter=adapter, built=built, spec=spec)
    finally:
        adapter.close()


@pytest.fixture(scope="session")
def engine(checkpoint: Path, rollout: Rollout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One stock engine for all tests of a process."""
    with live_engine(checkpoint, rollout, tmp_path_factory.mktemp("engine")) as found:
        yield found


@pytest.fixture(scope="session")
def scores(engine: Any, rollout: Rollout) -> dict[str, Any]:
    """(report, columns) by arm."""
    return {
        arm: engine.adapter.score(ScoreRequest(id=arm, arm=arm), rollout)
        for arm in ("rollout_prefill", "rollout_decode")
    }


def float64_logprobs(
    checkpoint: Path, rollout: Rollout, temperature: float = 1.0, head: Callable[..., torch.Tensor] = lambda item: item
) -> np.ndarray:
    """Log probabilities of the active tokens from transformers in float64, one sequence at a time.

    head: what is done to the logits before they are divided by the temperature.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64, attn_implementation="eager")
    values = np.full(len(rollout.token_ids), np.nan)
    for sequence in range(rollout.sequence_count):
        span = rollout.span(sequence)
        ids = torch.from_numpy(rollout.token_ids[span].astype(np.int64))
        with torch.no_grad():
            logits = model(ids[None]).logits[0]
        found = (head(logits) / temperature).log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]
        values[span.start + 1 : span.stop] = found.numpy()
    values[~rollout.active] = np.nan
    return values


@pytest.fixture(scope="session")
def oracle(checkpoint: Path, rollout: Rollout) -> np.ndarray:
    return float64_logprobs(checkpoint, rollout)


@pytest.fixture(scope="session")
def formula() -> Any:
    """The function behind `oracle`, for other rollouts and temperatures."""
    return float64_logprobs


@pytest.fixture(scope="session")
def shared_prompt() -> Rollout:
    """Three samples of one prompt of 70 tokens, as in a group of GRPO; see sample."""
    return sample(lengths=(90, 84, 77), prompts=(70, 70, 70), shared=70)


@pytest.fixture(scope="session")
def live() -> Any:
    """The context manager that builds an engine of one's own; see live_engine."""
    return live_engine

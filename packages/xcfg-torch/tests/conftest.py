"""Fixtures: the tiny checkpoint, frozen rollouts of random tokens, and adapters driven in process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from xcfg.identity.rollout import Rollout, make_rollout
from xcfg.plugin.protocols import RankContext
from xcfg.schema.identity import CheckpointRef, SamplingRecord
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.worker import PROTOCOL, ScoreRequest, WorkerSpec

torch.set_num_threads(1)
WORKER = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from xcfg.identity.rollout import read_rollout
from xcfg.plugin.protocols import RankContext
from xcfg.schema.codec import decode_json, pretty_json
from xcfg.schema.worker import ScoreRequest, WorkerSpec
from xcfg_torch.adapter import TorchAdapter

torch.set_num_threads(1)
rank = int(sys.argv[2])
for folder in sorted(Path(sys.argv[1]).glob("engine-*")):
    spec = decode_json((folder / "spec.json").read_bytes(), WorkerSpec)
    adapter = TorchAdapter()
    context = RankContext(rank, spec.world_size, spec.devices[rank], folder, f"file://{folder / 'rendezvous'}")
    built = adapter.build(spec, context)
    (folder / f"build-{rank}.json").write_bytes(pretty_json(built))
    for file in sorted(folder.glob("request-*.json")):
        request = decode_json(file.read_bytes(), ScoreRequest)
        report, columns = adapter.score(request, read_rollout(folder.parent / "rollout"))
        (folder / f"report-{request.id}-{rank}.json").write_bytes(pretty_json(report))
        save_file(columns, folder / f"columns-{request.id}-{rank}.safetensors")
    adapter.close()
"""
ARM = {"training": "training", "rollout": "rollout_prefill", "reference": "reference"}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Qwen3 with 512 vocabulary entries."""
    from xcfg_torch.checkpoints import tiny_qwen3_512

    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    folder.mkdir()
    tiny_qwen3_512(folder)
    return folder


def build_rollout(
    prompts: list[int], responses: list[int], *, seed: int = 0, vocabulary: int = 512, **extra: Any
) -> Rollout:
    """Return a rollout of random ids with the given prompt and response lengths; all responses are active."""
    generator = np.random.default_rng(seed)
    lengths = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    ids = generator.integers(0, vocabulary, sum(lengths))
    active = np.concatenate([np.arange(length) >= prompt for length, prompt in zip(lengths, prompts, strict=True)])
    tensors: dict[str, Any] = {
        "token_ids": ids,
        "offsets": np.concatenate(([0], np.cumsum(lengths))),
        "active_mask": active,
        "attention_mask": np.ones(len(ids), dtype=bool),
        "position_ids": np.concatenate([np.arange(length) for length in lengths]),
        "selected_token_ids": ids,
        "segment": active.astype(np.int8),
        "weight_version": np.zeros(len(ids), dtype=np.int32),
    }
    tensors.update(extra.pop("tensors", {}))
    sampling: SamplingRecord | None = extra.pop("sampling", None)
    return make_rollout(tensors, checkpoint=CheckpointRef(uri="builtin:tiny-qwen3-512"), sampling=sampling)


@pytest.fixture
def rollout_of() -> Callable[..., Rollout]:
    """`rollout_of(prompts, responses, ...)`, see build_rollout."""
    return build_rollout


@pytest.fixture
def uneven() -> Rollout:
    """Five sequences of unequal prompt and response lengths, 41 active tokens."""
    return build_rollout([5, 9, 3, 12, 7], [11, 6, 9, 8, 7])


def make_spec(
    checkpoint: Path,
    side: str,
    knobs: dict[str, Any],
    *,
    options: dict[str, Any] | None = None,
    factory: str = "xcfg_torch.logprob:log_softmax_gather",
    backend: str = "torch.log_softmax_gather",
    chosen: dict[str, Any] | None = None,
    head: OperatorBinding | None = None,
    world_size: int = 1,
    devices: tuple[str, ...] = (),
) -> WorkerSpec:
    """Return the WorkerSpec of one side with a bound selected_logprob, and `head` as linear_selected_logprob.

    chosen: options of the selected_logprob.
    """
    binding = OperatorBinding(
        operation="selected_logprob",
        side=side,
        requested="native",
        backend_id=backend,
        factory=factory,
        options=chosen or {},
    )
    return WorkerSpec(
        protocol=PROTOCOL,
        runtime="torch",
        adapter="xcfg_torch.adapter:TorchAdapter",
        side=side,
        knobs=knobs,
        options=options or {},
        operators={"selected_logprob": binding} | ({} if head is None else {"linear_selected_logprob": head}),
        checkpoint=str(checkpoint),
        checkpoint_uri="builtin:tiny-qwen3-512",
        rollout="",
        world_size=world_size,
        devices=devices or ("cpu",) * world_size,
    )


@pytest.fixture
def spec_of() -> Callable[..., WorkerSpec]:
    """`spec_of(checkpoint, side, knobs, ...)`, see make_spec."""
    return make_spec


def launch_ranks(folder: Path, world: int) -> None:
    """Run WORKER once per rank on the engines in `folder` and wait; a failure shows the ranks' own output."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORKER, str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=200)[0].decode() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0] * world, "\n".join(outputs)[-3000:]


@pytest.fixture(scope="session")
def launch() -> Callable[[Path, int], None]:
    """`launch(folder, world)`, see launch_ranks."""
    return launch_ranks


@pytest.fixture
def built(tiny: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """`built(side, dtype, attention, ...)` -> object with adapter, report and score(rollout, arm, knobs, ...)."""
    from xcfg_torch.adapter import TorchAdapter

    made: list[TorchAdapter] = []

    def build(
        side: str,
        dtype: str = "float32",
        attention: str = "sdpa",
        *,
        checkpoint: Path | None = None,
        device: str = "cpu",
        **spec: Any,
    ) -> Any:
        head = "rollout" if side == "rollout" else "training"
        knobs = {f"{head}.attention_backend": attention}
        knobs["rollout.dtype" if side == "rollout" else "training.compute_dtype"] = dtype
        knobs.update(spec.pop("knobs", {}))
        adapter = TorchAdapter()
        made.append(adapter)
        context = RankContext(0, 1, device, tmp_path, f"file://{tmp_path / 'rendezvous'}")
        report = adapter.build(make_spec(checkpoint or tiny, side, knobs, devices=(device,), **spec), context)

        def score(rollout: Rollout, arm: str = "", knobs: dict[str, Any] | None = None, **request: Any) -> Any:
            wanted = ScoreRequest(id="r", arm=arm or ARM[side], knobs=knobs or {"batch.size": 2}, **request)
            answer, columns = adapter.score(wanted, rollout)
            active = columns["active"]
            values = columns["selected_logprob"][active].double().numpy()
            by_path = {item.path: item for item in answer.applications}
            return SimpleNamespace(report=answer, columns=columns, values=values, applications=by_path)

        return SimpleNamespace(adapter=adapter, report=report, score=score)

    yield build
    for adapter in made:
        adapter.close()

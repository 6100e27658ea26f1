"""The conformance kit against the runtime: real engines on a CPU, one after the other in this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from xcfg.schema.runtime import PlacementRequest
from xcfg_testkit import RuntimeContract
from xcfg_vllm.capabilities import VLLM
from xcfg_vllm.placement import placement

pytest.importorskip("vllm", reason="vLLM is not installed")
KNOBS: dict[str, Any] = {
    "weights.path": "load",
    "rollout.enable_chunked_prefill": True,
    "rollout.logprobs_mode": "raw_logprobs",
    "rollout.temperature": 1.0,
    "rollout.model_runner": "v1",
    "rollout.batch_invariant": False,
    "rollout.all_reduce_backend": "library",
    "batch.size": 2,
    "batch.padding_side": "right",
    "batch.packing": False,
    "logp.backend": "native",
    "rollout.attention_backend": "model_default",
    "rollout.engine_attention": "CPU_ATTN",
    "rollout.custom_ops": "all",
    "rollout.block_size": 64,
    "rollout.dtype": "float32",
    "rollout.enable_prefix_caching": False,
    "rollout.enforce_eager": True,
    "rollout.kv_cache_dtype": "auto",
    "rollout.max_num_batched_tokens": 2048,
    "rollout.max_num_seqs": 4,
    "rollout.tensor_parallel_size": 1,
    "rollout.context_parallel_size": 1,
}


@pytest.fixture(scope="session", autouse=True)
def process() -> None:
    """Set up this process as placement would have it set up before its start."""
    place = placement(PlacementRequest(side="rollout", knobs=KNOBS, options={"threads": 1}, devices=("cpu",)))
    os.environ.update(place.env)


class TestVllmRuntime(RuntimeContract):
    descriptor = VLLM
    knobs: ClassVar[dict[str, dict[str, Any]]] = {"rollout": KNOBS}
    options = {"rollout": {"threads": 1, "max_model_len": 64}}
    vocabulary = 500
    run_to_run = True

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def with_checkpoint(cls, checkpoint: Path) -> None:
        cls.checkpoint = str(checkpoint)

    def setup_of(self, side: str, scratch: Path) -> Any:
        """An engine records in the one mode that it was built with."""
        setup = super().setup_of(side, scratch)
        return setup.but(knobs={**setup.knobs, "rollout.logprobs_mode": getattr(self, "mode", "raw_logprobs")})

    def _sampled(self, scratch: Path, **fields: Any) -> list[dict[str, Any]]:
        self.mode = fields.get("logprobs_mode", "raw_logprobs")
        return super()._sampled(scratch, **fields)

    @contextlib.contextmanager
    def sabotage(self, side: str) -> Iterator[str]:
        """A keyword that is dropped on its way into the engine."""
        from xcfg_vllm import build

        kept = build.DIRECT
        build.DIRECT = {path: name for path, name in kept.items() if path != "rollout.block_size"}
        try:
            yield "rollout.block_size"
        finally:
            build.DIRECT = kept

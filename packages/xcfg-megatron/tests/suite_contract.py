"""The conformance kit against the runtime, in this process: one rank of a real GPTModel on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from xcfg_megatron import build
from xcfg_megatron.backends import BACKENDS
from xcfg_megatron.capabilities import MEGATRON
from xcfg_megatron.switches import SWITCHES
from xcfg_testkit import RuntimeContract, SelectedLogprobContract

pytest.importorskip("megatron.core", reason="Megatron-core is not installed")


class TestMegatronRuntime(RuntimeContract):
    descriptor = MEGATRON
    knobs: ClassVar[dict[str, dict[str, Any]]] = {
        "training": {
            "training.compute_dtype": "float32",
            "training.tensor_parallel_size": 1,
            "training.attention_backend": "model_default",
            "training.context_parallel_size": 1,
            "training.recompute": "none",
            "training.fp8": "none",
            "training.layer_spec": "local",
            "training.temperature": 1.0,
            "training.vocab_padding_policy": "mask",
            **{item.path: item.default for item in SWITCHES},
            "training.sharding": "unsharded",
            "batch.size": 2,
            "batch.padding_side": "right",
            "batch.packing": False,
            "logp.backend": "native",
        }
    }
    options = {"training": {"threads": 1}}
    vocabulary = 500
    run_to_run = True

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def with_checkpoint(cls, checkpoint: Callable[..., Path]) -> None:
        cls.checkpoint = str(checkpoint("qwen3", 500))

    @contextlib.contextmanager
    def sabotage(self, side: str) -> Iterator[str]:
        """Megatron-core is handed another value of a flag than was asked for."""
        plain = build.config_fields
        build.config_fields = lambda knobs: {**plain(knobs), "apply_query_key_layer_scaling": True}
        try:
            yield "training.query_key_layer_scaling"
        finally:
            build.config_fields = plain

    def tensors(self, adapter: Any) -> Iterator[tuple[str, Any]]:
        yield from adapter.engine.model.named_parameters()
        yield from adapter.engine.model.named_buffers()


class TestVocabParallel(SelectedLogprobContract):
    descriptor = BACKENDS[0]

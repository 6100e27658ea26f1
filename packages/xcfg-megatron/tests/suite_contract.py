"""The conformance kit against the runtime, in this process: one rank of a real GPTModel on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
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

    def tensors(self, adapter: Any) -> Iterator[tuple[str, Any]]:
        yield from adapter.engine.model.named_parameters()
        yield from adapter.engine.model.named_buffers()


class TestVocabParallel(SelectedLogprobContract):
    descriptor = BACKENDS[0]

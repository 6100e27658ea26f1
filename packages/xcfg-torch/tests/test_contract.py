"""The conformance kit against both runtimes, the operator backends and the plugin module of this package."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from xcfg.schema.names import Applied
from xcfg_testkit import OperatorContract, PluginContract, RuntimeContract, SelectedLogprobContract
from xcfg_torch.capabilities import BACKENDS, CPU_SMOKE, TORCH

BY_ID = {item.backend_id: item for item in BACKENDS}
LACKED = {
    "rollout.tensor_parallel_size": 1,
    "rollout.context_parallel_size": 1,
    "rollout.enable_prefix_caching": False,
    "rollout.enforce_eager": True,
}
LAYOUT = {"batch.size": 2, "batch.padding_side": "right", "batch.packing": False}
TRAINING = {"training.compute_dtype": "float32", "training.attention_backend": "sdpa", "logp.backend": "native"}


@pytest.fixture(scope="module")
def tiny_500(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Qwen3 with 500 vocabulary entries."""
    from xcfg_torch.checkpoints import tiny_qwen3_500

    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    folder.mkdir()
    tiny_qwen3_500(folder)
    return folder


class TestTorchRuntime(RuntimeContract):
    descriptor = TORCH
    knobs: ClassVar[dict[str, dict[str, Any]]] = {
        "rollout": {
            **LACKED,
            **LAYOUT,
            "rollout.dtype": "bfloat16",
            "rollout.attention_backend": "sdpa",
            "logp.backend": "native",
        },
        "training": {
            **LAYOUT,
            **TRAINING,
            "training.sharding": "unsharded",
            "training.fsdp_master_dtype": "compute",
            "training.fsdp_output_dtype": "uncast",
        },
        "reference": {**LAYOUT, **TRAINING, "training.compute_dtype": "float64", "training.attention_backend": "eager"},
    }
    options = {side: {"threads": 1} for side in ("rollout", "training", "reference")}
    vocabulary = 500
    run_to_run = True

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def with_checkpoint(cls, tiny_500: Path) -> None:
        cls.checkpoint = str(tiny_500)

    def tensors(self, adapter: Any) -> Iterator[tuple[str, Any]]:
        yield from adapter.engine.model.named_parameters()
        yield from adapter.engine.model.named_buffers()

    @contextlib.contextmanager
    def sabotage(self, side: str) -> Iterator[str]:
        """Another function runs under the name `sdpa`, and sdpa itself under `eager`."""
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
        from transformers.models.qwen3 import modeling_qwen3

        def eager(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **rest: Any) -> Any:
            return plain(module, query, key, value, mask, scaling)

        plain, kept = modeling_qwen3.eager_attention_forward, ALL_ATTENTION_FUNCTIONS["sdpa"]
        ALL_ATTENTION_FUNCTIONS["sdpa"], modeling_qwen3.eager_attention_forward = eager, sdpa_attention_forward
        try:
            yield "rollout.attention_backend" if side == "rollout" else "training.attention_backend"
        finally:
            ALL_ATTENTION_FUNCTIONS["sdpa"], modeling_qwen3.eager_attention_forward = kept, plain


@pytest.mark.gpu
class TestTorchRuntimeOnCuda(TestTorchRuntime):
    device = "cuda:0"


class TestSmokeRuntime(RuntimeContract):
    descriptor = CPU_SMOKE
    knobs: ClassVar[dict[str, dict[str, Any]]] = {
        "rollout": {
            **LACKED,
            **LAYOUT,
            "rollout.dtype": "float32",
            "rollout.attention_backend": "model_default",
            "logp.backend": "native",
        },
        "training": {
            **LAYOUT,
            **TRAINING,
            "training.attention_backend": "eager",
            "training.sharding": "unsharded",
        },
    }
    run_to_run = True
    has_weights = False
    whole_past = False


class TestLogSoftmaxGather(SelectedLogprobContract):
    descriptor = BY_ID["torch.log_softmax_gather"]


class TestSmokeReference(SelectedLogprobContract):
    descriptor = BY_ID["smoke_only.logp_reference"]


class TestSmokeOffset(OperatorContract):
    descriptor = BY_ID["smoke_only.logp_offset"]


class TestPlugin(PluginContract):
    module = "xcfg_torch.plugin"
    entry_point = "torch"


@pytest.mark.parametrize("arm", ["rollout_prefill", "rollout_decode"])
def test_what_the_descriptor_does_not_claim_is_unsupported(built, uneven, arm):
    """The kit takes any refusal; the case ends UNSUPPORTED only when the refusal says so."""
    engine = built("rollout")
    for knobs, claimed in (
        ({"batch.packing": True}, "False"),
        ({"batch.padding_side": "both"}, "'right', 'left'"),
        ({"batch.size": 0}, "1 or more"),
        ({"batch.size": True}, "1 or more"),
    ):
        with pytest.raises(Exception, match=next(iter(knobs))) as caught:
            engine.score(uneven, arm, {"batch.size": 2, **knobs})
        assert caught.value.kind == "unsupported", knobs
        assert claimed in caught.value.hint, knobs
    assert engine.score(uneven, arm).applications["batch.size"].status is Applied.APPLIED

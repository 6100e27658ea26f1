"""The engine arguments that an experiment may vary. No heavy import."""

from __future__ import annotations

from xcfg.schema._base import Value
from xcfg.schema.knobs import Choice, Domain, FloatRange, IntRange, KnobDefinition, Text
from xcfg.schema.names import Lifecycle, SourceClass, Target


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
    _knob(
        "rollout.enable_chunked_prefill",
        "Whether a prefill may be cut into pieces that share steps with other requests.",
        Choice(values=(True, False)),
        SourceClass.EXECUTION,
        "The live scheduler, where it lies in the worker's process, and prefills that ran in pieces.",
        NO_SCHEDULER,
    ),
    _knob(
        "rollout.logprobs_mode",
        "What the engine returns: log probabilities of the logits as they are, or after temperature and truncation.",
        Choice(values=("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")),
        SourceClass.ARITHMETIC,
        "The mode of the live sampler.",
        "a trainer has no sampler; what it applies to its logits is its temperature",
        default="raw_logprobs",
    ),
    _knob(
        "rollout.temperature",
        "Temperature of the requests, at least 0.01 in vLLM; it reaches values under processed_logprobs alone.",
        FloatRange(minimum=0.01),
        SourceClass.ARITHMETIC,
        "The temperatures of the live batch.",
        "aligned by hand with the trainer's own temperature",
        lifecycle=Lifecycle.REQUEST,
    ),
    _knob(
        "rollout.model_runner",
        "vLLM's model runner; the newer one runs where Triton does.",
        Choice(values=("v1", "v2")),
        SourceClass.EXECUTION,
        "The type of the live runner.",
        "the runners exist in vLLM alone",
        lifecycle=Lifecycle.PROCESS_START,
    ),
    _knob(
        "rollout.batch_invariant",
        "vLLM's batch-invariant kernels (VLLM_BATCH_INVARIANT).",
        Choice(values=(True, False)),
        SourceClass.REDUCTION,
        "The mode of vLLM's module of batch-invariant kernels in every worker.",
        "the kernels exist in vLLM alone",
        default=False,
        lifecycle=Lifecycle.PROCESS_START,
    ),
    _knob(
        "rollout.all_reduce_backend",
        "What sums partial results over tensor-parallel ranks: vLLM's custom kernel or the library of the platform.",
        Choice(values=("custom", "library")),
        SourceClass.REDUCTION,
        "Whether the live communicator holds a custom all-reduce that is not disabled.",
        "a training engine sums through its own process groups",
    ),
    _knob(
        "weights.path",
        "How the weights reach the engine: read when it is built, or put in place of random ones by a reload.",
        Choice(values=("load", "reload")),
        SourceClass.EXECUTION,
        "Digests of the weights before and after the reload.",
        "the path leaves no trace where both give the same weights",
        default="load",
    ),
)

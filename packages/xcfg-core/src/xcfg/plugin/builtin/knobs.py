"""The shared knobs: the ten of the V1 contract, and those that engines understand the same way.

The first ten are the V1 contract's "exact knob allowlist"; source classes follow the WS2 RFC's drift source
taxonomy. A plugin adds knobs of its own and never declares one of these again.
"""

from __future__ import annotations

from xcfg.schema._base import Value
from xcfg.schema.knobs import AlignSpec, Choice, IntRange, KnobDefinition, Text
from xcfg.schema.names import Lifecycle, SourceClass, Target, Tier

LOGP_BACKEND = "logp.backend"
V1_PATHS = (
    "batch.size",
    "rollout.tensor_parallel_size",
    "rollout.context_parallel_size",
    "rollout.dtype",
    "rollout.enable_prefix_caching",
    "rollout.enforce_eager",
    "training.attention_backend",
    "training.compute_dtype",
    LOGP_BACKEND,
    "training.sharding",
)
"""The knobs that every experiment carries; a v1 file names all of them."""

DTYPES = ("bfloat16", "float16", "float32")
DTYPE_ALIASES: dict[str, Value] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "torch.bfloat16": "bfloat16",
    "torch.float16": "float16",
    "torch.half": "float16",
    "torch.float32": "float32",
    "torch.float": "float32",
}
ATTENTION = ("flash_attention_2", "sdpa", "eager", "model_default")
ATTENTION_ALIASES: dict[str, Value] = {
    "flash-attention-2": "flash_attention_2",
    "model-default": "model_default",
}
POLICY_ALIASES: dict[str, Value] = {"auto": "native", "default": "native"}
"""Spellings of the production backend; every other id is the operator catalogue's to resolve."""

_DTYPE_ALIGN = AlignSpec(group="compute_dtype", reference="float32", scope=3, intrusion=1, maintenance=1)
_ATTENTION_ALIGN = AlignSpec(
    group="attention_backend",
    # model_default stands for whatever the engine picks, so it has no counterpart on the other side.
    canonical={f'"{name}"': name for name in ATTENTION if name != "model_default"},
    reference="eager",
    scope=2,
    intrusion=2,
    maintenance=2,
)


def _parallel(name: str, summary: str, group: str, read_back: str) -> KnobDefinition:
    return KnobDefinition(
        name=name,
        summary=summary,
        source_class=SourceClass.REDUCTION,
        lifecycle=Lifecycle.PROCESS_START,
        targets=Target.ROLLOUT,
        domain=IntRange(minimum=1),
        capability="The runtime lists the sizes it can place; the model's heads must divide by the size.",
        apply="Set before the ranks of the rollout engine start.",
        provenance=read_back,
        distributed=True,
        default=1,
        align=AlignSpec(group=group, reference=1, scope=3, intrusion=3, maintenance=2),
    )


def _dtype(name: str, summary: str, targets: Target) -> KnobDefinition:
    return KnobDefinition(
        name=name,
        summary=summary,
        source_class=SourceClass.REPRESENTATION,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=targets,
        domain=Choice(values=DTYPES),
        tier=Tier.IDENTICAL,
        aliases=DTYPE_ALIASES,
        capability="The runtime lists the dtypes in which it builds the model on its device.",
        apply="Passed to the engine when the model is built.",
        provenance="The input dtype of the decoder blocks' matmuls, read in the scoring process.",
        default="bfloat16",
        align=_DTYPE_ALIGN,
    )


def _attention(name: str, summary: str, targets: Target, default: str) -> KnobDefinition:
    return KnobDefinition(
        name=name,
        summary=summary,
        source_class=SourceClass.ARITHMETIC,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=targets,
        domain=Choice(values=ATTENTION),
        aliases=ATTENTION_ALIASES,
        capability="The runtime lists the implementations that it can build; any other value is unsupported.",
        apply="Passed to the engine when the model is built.",
        provenance="The type of each layer's attention implementation and the calls counted in it.",
        default=default,
        align=_ATTENTION_ALIGN,
    )


SHARED_KNOBS: tuple[KnobDefinition, ...] = (
    KnobDefinition(
        name="batch.size",
        summary="How many sequences are scored in one forward pass; canonical sample chunking only.",
        source_class=SourceClass.LOGICAL_LAYOUT,
        lifecycle=Lifecycle.REQUEST,
        targets=Target.BOTH,
        domain=IntRange(minimum=1),
        capability="Every runtime chunks by it; one that schedules on its own bounds its batch by it.",
        apply="Passed with each score request.",
        provenance="The largest batch that entered the model, counted in the scoring process.",
        default=8,
        align=AlignSpec(group="batch.size", scope=1, intrusion=1, maintenance=1),
    ),
    _parallel(
        "rollout.tensor_parallel_size",
        "Tensor-parallel world size of the rollout engine.",
        "tensor_parallel_size",
        "The size of the engine's tensor-parallel group and the shapes of its local weights.",
    ),
    _parallel(
        "rollout.context_parallel_size",
        "Context-parallel world size of the rollout engine.",
        "context_parallel_size",
        "The size of the engine's context-parallel group.",
    ),
    _dtype("rollout.dtype", "Numerical dtype of the rollout engine's model.", Target.ROLLOUT),
    KnobDefinition(
        name="rollout.enable_prefix_caching",
        summary="Whether the rollout engine reuses cached keys and values of shared prefixes.",
        source_class=SourceClass.EXECUTION,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=Target.ROLLOUT,
        domain=Choice(values=(True, False)),
        capability="An engine without such a cache declares `false` as inherent.",
        apply="Passed to the engine when it is built.",
        provenance="The engine's cache configuration, and the cached tokens it counts per request.",
        default=False,
        not_alignable="teacher forcing on the training side keeps no key-value cache to match",
    ),
    KnobDefinition(
        name="rollout.enforce_eager",
        summary="Whether the rollout engine runs eagerly instead of through its compiled or graph path.",
        source_class=SourceClass.EXECUTION,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=Target.ROLLOUT,
        domain=Choice(values=(True, False)),
        capability="An eager-only engine declares `true` as inherent.",
        apply="Passed to the engine when it is built.",
        provenance="The engine's compilation mode and the graphs that it captured.",
        default=True,
        not_alignable="the rollout engine's graphs and compiler have no training-side switch of that meaning",
    ),
    _attention(
        "training.attention_backend",
        "Attention implementation of the training scorer.",
        Target.TRAINING,
        "sdpa",
    ),
    _dtype("training.compute_dtype", "Compute dtype of the training scorer.", Target.TRAINING),
    KnobDefinition(
        name=LOGP_BACKEND,
        summary="Backend of `selected_logprob` on both sides; derived where `operators` is explicit.",
        source_class=SourceClass.ARITHMETIC,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=Target.BOTH,
        domain=Text(pattern=r"[A-Za-z0-9][A-Za-z0-9_.:/+-]{0,127}"),
        aliases=POLICY_ALIASES,
        capability="The backend's descriptor lists sides, devices, dtypes and topologies.",
        apply="Resolved to one exact backend per side and injected when the engine is built.",
        provenance="The calls counted in the injected operator, and its resolved backend id.",
        derived=True,
        default="native",
        align=AlignSpec(group=LOGP_BACKEND, reference="reference", scope=1, intrusion=2, maintenance=2),
    ),
    KnobDefinition(
        name="training.sharding",
        summary="How the training scorer's parameters are laid out over its ranks.",
        source_class=SourceClass.REDUCTION,
        lifecycle=Lifecycle.PROCESS_START,
        targets=Target.TRAINING,
        domain=Choice(values=("unsharded", "fsdp")),
        capability="The runtime lists the layouts that it can place.",
        apply="Set before the ranks of the training scorer start.",
        provenance="The parameter placements and the size of the shard group.",
        distributed=True,
        default="unsharded",
        not_alignable="FSDP gathers whole parameters before compute and tensor parallelism never does",
    ),
    _attention(
        "rollout.attention_backend",
        "Attention implementation of the rollout engine.",
        Target.ROLLOUT,
        "model_default",
    ),
    KnobDefinition(
        name="batch.padding_side",
        summary="On which side the physical batch is padded; mask and positions stay the logical ones.",
        source_class=SourceClass.LOGICAL_LAYOUT,
        lifecycle=Lifecycle.REQUEST,
        targets=Target.BOTH,
        domain=Choice(values=("right", "left")),
        capability="A runtime that pads lists the sides it can pad; one that never pads lists none.",
        apply="Passed with each score request.",
        provenance="The padding side of the batches that entered the model.",
        default="right",
        align=AlignSpec(group="batch.padding_side", reference="right", scope=1, intrusion=1, maintenance=1),
    ),
    KnobDefinition(
        name="batch.packing",
        summary="Whether sequences are packed into one row, told apart by positions that start again.",
        source_class=SourceClass.LOGICAL_LAYOUT,
        lifecycle=Lifecycle.REQUEST,
        targets=Target.BOTH,
        domain=Choice(values=(True, False)),
        capability="The runtime's attention must keep packed sequences apart.",
        apply="Passed with each score request.",
        provenance="The rows and position resets of the batches that entered the model.",
        default=False,
        align=AlignSpec(group="batch.packing", reference=False, scope=1, intrusion=1, maintenance=1),
    ),
)

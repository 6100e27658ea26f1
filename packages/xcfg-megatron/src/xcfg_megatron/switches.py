"""The flags of Megatron-core's TransformerConfig that are knobs, as one table. No heavy import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xcfg.schema._base import Value

TRANSFORMER_ENGINE = "transformer_engine"
"""The layer spec that is not Megatron-core's own."""


@dataclass(frozen=True)
class Switch:
    """One knob and the field it sets. default: Megatron's value in this runtime's baseline."""

    path: str
    field: str
    default: bool
    summary: str
    provenance: str


SWITCHES = (
    Switch(
        "training.bias_activation_fusion",
        "bias_activation_fusion",
        False,
        "Megatron's fused SwiGLU in place of separate operations.",
        "Calls of the fused function while a score ran.",
    ),
    Switch(
        "training.query_key_layer_scaling",
        "apply_query_key_layer_scaling",
        False,
        "Scale queries and keys by the layer number and undo it in the softmax.",
        "The scale that every live core attention carries.",
    ),
    Switch(
        "training.sequence_parallel",
        "sequence_parallel",
        False,
        "Split activations between the tensor-parallel regions along the sequence; needs an injected norm.",
        "Reduce-scatters and all-reduces counted while a score ran.",
    ),
    Switch(
        "training.masked_softmax_fusion",
        "masked_softmax_fusion",
        False,
        "Megatron's CUDA kernel for scale, mask and softmax in its own core attention.",
        "Calls of the fused kernel against calls of the softmax module.",
    ),
    Switch(
        "training.softmax_in_fp32",
        "attention_softmax_in_fp32",
        True,
        "Widen attention scores to float32 before the softmax of Megatron's own core attention.",
        "The dtype in which scores entered the softmax.",
    ),
    Switch(
        "training.deterministic_mode",
        "deterministic_mode",
        False,
        "Megatron's deterministic algorithms.",
        "None: on the local spec it selects a backward algorithm only.",
    ),
    Switch(
        "training.bias_dropout_fusion",
        "bias_dropout_fusion",
        False,
        "Megatron's fused bias, dropout and residual addition.",
        "None: without bias and dropout the fused function is the same addition.",
    ),
    Switch(
        "training.disable_bf16_reduced_precision_matmul",
        "disable_bf16_reduced_precision_matmul",
        False,
        "Forbid reduced-precision reductions in bfloat16 matrix products of CUDA.",
        "The flag of torch's CUDA backend; a CPU has none.",
    ),
    Switch(
        "training.rope_fusion",
        "apply_rope_fusion",
        False,
        "Transformer Engine's fused rotary embedding.",
        "Whether Megatron-core builds with it.",
    ),
    Switch(
        "training.batch_invariant_mode",
        "batch_invariant_mode",
        False,
        "Megatron's batch-invariant kernels.",
        "Whether Megatron-core builds with it.",
    ),
    Switch(
        "training.persist_layer_norm",
        "persist_layer_norm",
        False,
        "Apex's persistent layer norm kernel.",
        "The type of every live norm.",
    ),
)
BY_PATH = {item.path: item for item in SWITCHES}

RECOMPUTE = "training.recompute"
FP8 = "training.fp8"
LAYER_SPEC = "training.layer_spec"
TENSOR_PARALLEL = "training.tensor_parallel_size"
CONTEXT_PARALLEL = "training.context_parallel_size"
TEMPERATURE = "training.temperature"
VOCABULARY = "training.vocab_padding_policy"

_RECOMPUTE_FIELDS: dict[Value, dict[str, Any]] = {
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "selective": {"recompute_granularity": "selective"},
}
_PLAIN: dict[str, Value] = {
    RECOMPUTE: "none",
    FP8: "none",
    LAYER_SPEC: "local",
    TENSOR_PARALLEL: 1,
    CONTEXT_PARALLEL: 1,
    **{item.path: item.default for item in SWITCHES},
}


def config_fields(knobs: Mapping[str, Value]) -> dict[str, Any]:
    """Return the fields of TransformerConfig that `knobs` set; every switch has its default where none is named."""
    fields: dict[str, Any] = {item.field: bool(knobs.get(item.path, item.default)) for item in SWITCHES}
    fields |= _RECOMPUTE_FIELDS.get(knobs.get(RECOMPUTE, "none"), {})
    fp8 = knobs.get(FP8, "none")
    if fp8 != "none":
        fields["fp8"] = fp8
    return fields


def unusual(knobs: Mapping[str, Value]) -> list[str]:
    """Return `path=value` of the construction knobs that are not at their plain value: what a refusal may be due to.

    The tensor-parallel size is named where nothing else is unusual; Megatron-core splits most models without complaint.
    """
    found = {path: f"{path}={knobs[path]!r}" for path, value in _PLAIN.items() if knobs.get(path, value) != value}
    others = [said for path, said in found.items() if path != TENSOR_PARALLEL]
    return others or list(found.values())

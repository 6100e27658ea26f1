"""The knobs of FSDP2's mixed precision. No heavy import."""

from __future__ import annotations

from xcfg.schema.knobs import Choice, KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target

MASTER, OUTPUT = "training.fsdp_master_dtype", "training.fsdp_output_dtype"
SAME, UNCAST = "compute", "uncast"
"""Defaults: shards lie in the compute dtype; the model's output is not cast."""
DTYPES = ("bfloat16", "float16", "float32")

KNOBS = (
    KnobDefinition(
        name=MASTER,
        summary="Dtype of the sharded master weights; they are cast to the compute dtype when a block is gathered.",
        source_class=SourceClass.REPRESENTATION,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=Target.TRAINING,
        domain=Choice(values=(SAME, *DTYPES)),
        capability="Needs training.sharding=fsdp.",
        apply="The model is loaded in it, and param_dtype of FSDP2's MixedPrecisionPolicy is the compute dtype.",
        provenance="The dtype of the live shards, and of the weights inside the matmuls while they run.",
        default=SAME,
        not_alignable="a rollout engine holds its weights in the dtype in which it computes",
    ),
    KnobDefinition(
        name=OUTPUT,
        summary="Dtype to which FSDP2 casts the logits that leave the model (output_dtype of its policy).",
        source_class=SourceClass.REPRESENTATION,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=Target.TRAINING,
        domain=Choice(values=(UNCAST, *DTYPES)),
        capability="Needs training.sharding=fsdp.",
        apply="output_dtype of the MixedPrecisionPolicy of the root.",
        provenance="The dtypes of what left the head and of what left the model, counted in forwards.",
        default=UNCAST,
        not_alignable="a cast of FSDP2 alone",
    ),
)

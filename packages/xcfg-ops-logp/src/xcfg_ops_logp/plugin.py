"""What this package registers: backends of `selected_logprob` and `linear_selected_logprob`. Imports nothing heavy."""

from __future__ import annotations

from xcfg.plugin import DebugMatrix, hookimpl
from xcfg.schema.knobs import IntRange, KnobDefinition
from xcfg.schema.operators import OperatorBackendDescriptor, OptionDefinition

from xcfg_ops_logp.ablation.descriptor import ABLATION
from xcfg_ops_logp.ablation.head_descriptor import ABLATION_LINEAR
from xcfg_ops_logp.ablation.head_descriptor import KNOBS as HEAD_KNOBS
from xcfg_ops_logp.ablation.knobs import KNOBS
from xcfg_ops_logp.kernel_backends import KERNEL_BACKENDS
from xcfg_ops_logp.matrix.rows import CAPTURE, MATRIX
from xcfg_ops_logp.torch_backends import BACKENDS, IGNORE

REFERENCE = OperatorBackendDescriptor(
    operation="selected_logprob",
    backend_id="xcfg.reference_logp",
    summary="float64 log-softmax and gather in a fixed reduction tree, a block of rows at a time",
    factory="xcfg_ops_logp.reference:build",
    aliases=("rlkernel.reference_logp", "reference", "pytorch"),
    shapes="logits [N, V] over the whole vocabulary, selected [N]; any N >= 0 and V >= 1",
    properties=("run-to-run", "batch-invariant"),
    options=(
        OptionDefinition(
            name="chunk_rows",
            domain=IntRange(minimum=1),
            default=32,
            summary="rows held in float64 at a time; bounds memory and moves no bit of the result",
        ),
        IGNORE,
    ),
)


@hookimpl
def xcfg_knobs() -> tuple[KnobDefinition, ...]:
    """Return the axes of the selected log probability and of the head before it."""
    return (*KNOBS, *HEAD_KNOBS)


@hookimpl
def xcfg_operator_backends() -> tuple[OperatorBackendDescriptor, ...]:
    """Return the backends of this package."""
    return (REFERENCE, *BACKENDS, *KERNEL_BACKENDS, ABLATION, ABLATION_LINEAR, CAPTURE)


@hookimpl
def xcfg_debug_matrices() -> tuple[DebugMatrix, ...]:
    """Return the debug matrix `logp`."""
    return (MATRIX,)

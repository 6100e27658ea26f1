"""What xcfg-torch brings: the runtimes torch and cpu-smoke, their operator backends, built-in checkpoints."""

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg.schema.runtime import CheckpointDescriptor, RuntimeDescriptor

from xcfg_torch.capabilities import BACKENDS, CHECKPOINTS, CPU_SMOKE, TORCH
from xcfg_torch.mixed_knobs import KNOBS


@hookimpl
def xcfg_runtimes() -> tuple[RuntimeDescriptor, ...]:
    """Return the embedded runtime and the synthetic one."""
    return (TORCH, CPU_SMOKE)


@hookimpl
def xcfg_knobs() -> tuple[KnobDefinition, ...]:
    """Return the mixed precision of FSDP2."""
    return KNOBS


@hookimpl
def xcfg_operator_backends() -> tuple[OperatorBackendDescriptor, ...]:
    """Return the production selected_logprob and the two smoke operators."""
    return BACKENDS


@hookimpl
def xcfg_checkpoints() -> tuple[CheckpointDescriptor, ...]:
    """Return the checkpoints named `builtin:NAME`."""
    return CHECKPOINTS

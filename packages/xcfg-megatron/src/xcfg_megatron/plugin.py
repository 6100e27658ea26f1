"""The plugin `megatron`: the training runtime, its knobs, its own log probability as a backend."""

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg.schema.runtime import RuntimeDescriptor

from xcfg_megatron.capabilities import BACKENDS, KNOBS, MEGATRON


@hookimpl
def xcfg_runtimes() -> tuple[RuntimeDescriptor, ...]:
    """Return the runtime of this package."""
    return (MEGATRON,)


@hookimpl
def xcfg_knobs() -> tuple[KnobDefinition, ...]:
    """Return the settings that an experiment may vary."""
    return KNOBS


@hookimpl
def xcfg_operator_backends() -> tuple[OperatorBackendDescriptor, ...]:
    """Return Megatron's vocab-parallel selected log probability."""
    return BACKENDS

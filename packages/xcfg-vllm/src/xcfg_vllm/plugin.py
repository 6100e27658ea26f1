"""The plugin `vllm`: the rollout runtime, its knobs, and what the engine brings itself as operator backends."""

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg.schema.runtime import RuntimeDescriptor

from xcfg_vllm.capabilities import BACKENDS, VLLM
from xcfg_vllm.declared import KNOBS


@hookimpl
def xcfg_runtimes() -> tuple[RuntimeDescriptor, ...]:
    """Return the runtime of this package."""
    return (VLLM,)


@hookimpl
def xcfg_knobs() -> tuple[KnobDefinition, ...]:
    """Return the engine arguments that an experiment may vary."""
    return KNOBS


@hookimpl
def xcfg_operator_backends() -> tuple[OperatorBackendDescriptor, ...]:
    """Return the engine's own selected log probability and the ids of its own layers."""
    return BACKENDS

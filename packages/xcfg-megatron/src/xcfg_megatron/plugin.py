"""The plugin `megatron`: the training runtime, its knobs, its own log probability as a backend."""

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg.schema.runtime import RuntimeDescriptor

from xcfg_megatron.backends import BACKENDS
from xcfg_megatron.capabilities import MEGATRON
from xcfg_megatron.knob_records import KNOBS


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
    """Return the log probabilities that know the shards, and the ids of what Megatron-core builds itself."""
    return BACKENDS

"""The plugin `megatron`: announces the training runtime that this version does not have yet."""

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.runtime import RuntimeDescriptor

MEGATRON = RuntimeDescriptor(
    name="megatron",
    summary="Training scores from a real Megatron-core model, teacher-forced.",
    adapter="",
    placement="",
    arms={"training": ("training",)},
    status="planned",
    missing="the adapter that constructs, drives and reads back Megatron-core is not part of this version",
)


@hookimpl
def xcfg_runtimes() -> tuple[RuntimeDescriptor, ...]:
    """Return the runtime of this package, which is listed and refused when named."""
    return (MEGATRON,)

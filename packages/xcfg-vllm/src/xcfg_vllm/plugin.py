"""The plugin `vllm`: announces the rollout runtime that this version does not have yet."""

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.runtime import RuntimeDescriptor

VLLM = RuntimeDescriptor(
    name="vllm",
    summary="Rollout scores from a real vLLM engine: prefill, and forced replay through real decode.",
    adapter="",
    placement="",
    arms={"rollout": ("rollout_prefill", "rollout_decode")},
    status="planned",
    missing="the adapter that constructs, drives and reads back vLLM is not part of this version",
)


@hookimpl
def xcfg_runtimes() -> tuple[RuntimeDescriptor, ...]:
    """Return the runtime of this package, which is listed and refused when named."""
    return (VLLM,)

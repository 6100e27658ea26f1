"""The runtime options of `vllm`: engine arguments that are no knobs, strictly typed."""

from __future__ import annotations

from typing import Any

from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema._base import Input
from xcfg.schema.codec import convert

RUNNERS = ("v1", "v2")
SOURCE = "runtime_options of the runtime 'vllm'"


class VllmOptions(Input, frozen=True):
    """Hashed into the case id and reported in the provenance.

    max_model_len: positions that the engine provides for; null: the longest sequence of the rollout and one more.
    kv_cache_gib: memory for keys and values on a CPU, in whole GiB per rank.
    gpu_memory_utilization: share of a GPU's memory that the engine may take.
    threads: OpenMP threads per rank on a CPU; null: cores divided by ranks.
    async_scheduling: prepare the next step while this one runs; forced replay through a logits processor needs false.
    model_runner: v1 or v2, vLLM's model runner; null: v1 on a CPU, where there is no other, and v2 on a GPU.
    """

    max_model_len: int | None = None
    kv_cache_gib: int = 1
    gpu_memory_utilization: float = 0.6
    threads: int | None = None
    async_scheduling: bool = False
    model_runner: str | None = None


def parse_options(document: dict[str, Any]) -> VllmOptions:
    """Return `document` as VllmOptions; ConfigError for an unknown option, a wrong type or a wrong value."""
    known = VllmOptions.__struct_fields__
    unknown = sorted(set(document) - set(known))
    if unknown:
        raise ConfigError(
            f"there is no option {unknown[0]!r}",
            source=SOURCE,
            path=f"$.{unknown[0]}",
            hint=did_you_mean(unknown[0], known),
        )
    options = convert(document, VllmOptions, source=SOURCE)
    for name in ("max_model_len", "kv_cache_gib", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(
                f"{value} is not a positive number", source=SOURCE, path=f"$.{name}", hint="Use 1 or more."
            )
    if options.model_runner not in (None, *RUNNERS):
        raise ConfigError(
            f"{options.model_runner!r} is no model runner",
            source=SOURCE,
            path="$.model_runner",
            hint=f"{' or '.join(RUNNERS)}.",
        )
    if not 0 < options.gpu_memory_utilization <= 1:
        raise ConfigError(
            f"{options.gpu_memory_utilization} is no share",
            source=SOURCE,
            path="$.gpu_memory_utilization",
            hint="Above 0, at most 1.",
        )
    return options

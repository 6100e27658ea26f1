"""The runtime options of `vllm`: engine arguments that are no knobs, strictly typed."""

from __future__ import annotations

import re
from typing import Any

from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema._base import Input
from xcfg.schema.codec import convert

VARIABLES = ("VLLM_", "NCCL_", "CUBLAS_", "TORCH_", "CUDA_")
OWNED = (
    "VLLM_BATCH_INVARIANT",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_WORKER_MULTIPROC_METHOD",
    "VLLM_CPU_KVCACHE_SPACE",
    "CUDA_VISIBLE_DEVICES",
)
"""Variables that this package sets itself."""
SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
LOADED = ("_PATH", "_DIR", "_ROOT", "_PLUGIN")
"""Endings of variables that name code or folders of a machine (CUDA_INJECTION64_PATH, NCCL_NET_PLUGIN)."""
SOURCE = "runtime_options of the runtime 'vllm'"


class VllmOptions(Input, frozen=True):
    """Hashed into the case id and reported in the provenance.

    max_model_len: positions that the engine provides for; null: the longest sequence of the rollout and one more.
    kv_cache_gib: memory for keys and values, in whole GiB per rank; null: 1 on a CPU, what vLLM finds free on a GPU.
    gpu_memory_utilization: share of a GPU's memory that the engine may take.
    threads: OpenMP threads per rank on a CPU; null: cores divided by ranks.
    async_scheduling: prepare the next step while this one runs; forced replay through a logits processor needs false.
    prompts_read_cache: let prefill requests read a prefix cache; vLLM returns what lay in memory, often 0.0, for the
    tokens it brings, and xcfg takes such a token as not scored.
    hf_overrides: fields put over the checkpoint's config.json, as vLLM's argument of that name does.
    environment: variables of the engine's processes, of the names VLLM_*, NCCL_*, CUBLAS_*, TORCH_* and CUDA_*; none
    that names code or a folder of the machine.
    """

    max_model_len: int | None = None
    kv_cache_gib: int | None = None
    gpu_memory_utilization: float = 0.6
    threads: int | None = None
    async_scheduling: bool = False
    prompts_read_cache: bool = False
    hf_overrides: dict[str, Any] = {}
    environment: dict[str, str] = {}


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
    for name, value in options.environment.items():
        _check_variable(name, value)
    if not 0 < options.gpu_memory_utilization <= 1:
        raise ConfigError(
            f"{options.gpu_memory_utilization} is no share",
            source=SOURCE,
            path="$.gpu_memory_utilization",
            hint="Above 0, at most 1.",
        )
    return options


def is_secret(name: str) -> bool:
    """Whether a variable of this name may hold what must not be kept with the evidence."""
    return any(part in name for part in SECRETS)


def _check_variable(name: str, value: str) -> None:
    """Raise ConfigError for a name or a value that no process can have, that is not ours to set, or that is secret."""
    secret = is_secret(name)
    loads = name.endswith(LOADED)
    allowed = name.startswith(VARIABLES) and name not in OWNED and not secret and not loads
    if allowed and re.fullmatch(r"[A-Z][A-Z0-9_]*", name) and "\0" not in value:
        return
    hint = (
        f"Names of capitals that begin with {', '.join(VARIABLES)}; {', '.join(OWNED)} follow from knobs and options."
    )
    if secret:
        hint = "What stands in an experiment is kept with its evidence; set secrets in the environment of xcfg."
    elif loads:
        hint = "An experiment that is handed on must not choose code or folders of the machine that runs it."
    raise ConfigError(
        f"the variable {name!r} cannot be set here", source=SOURCE, path=f"$.environment.{name}", hint=hint
    )

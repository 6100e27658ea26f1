"""How a vLLM engine is launched; runs in the supervisor and imports neither torch nor vllm."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution

from xcfg.schema._base import Value
from xcfg.schema.runtime import Placement, PlacementRequest

from xcfg_vllm.options import VllmOptions, parse_options

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
CPU_BLOCK = 32
"""vLLM's CPU attention takes blocks of a multiple of this many tokens."""


def placement(request: PlacementRequest) -> Placement:
    """Return one process that hosts every rank, its environment, and the knobs that cannot be honoured.

    Raises ConfigError when the runtime options are not the runtime's.
    """
    options = parse_options(request.options)
    ranks = request.knobs.get("rollout.tensor_parallel_size", 1)
    world = ranks if isinstance(ranks, int) and ranks >= 1 else 1
    on_cuda = any(device.startswith("cuda") for device in request.devices)
    return Placement(
        world_size=world,
        processes=1,
        env={
            **_environment(options, world, on_cuda, request.devices),
            **_variables(request.knobs, on_cuda),
            **options.environment,
        },
        devices=request.devices[:world] if on_cuda else ("cpu",) * world,
        unsupported=_unsupported(request, world, on_cuda),
    )


def _environment(options: VllmOptions, world: int, on_cuda: bool, devices: tuple[str, ...]) -> dict[str, str]:
    env = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if world == 1 else "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        **OFFLINE,
    }
    env["CUDA_VISIBLE_DEVICES"] = _visible(devices)
    if not on_cuda:
        threads = str(options.threads or max(1, _cores() // world))
        env |= {
            "VLLM_CPU_KVCACHE_SPACE": str(options.kv_cache_gib or 1),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OMP_WAIT_POLICY": "PASSIVE",
        }
    return env


def _variables(knobs: Mapping[str, Value], on_cuda: bool) -> dict[str, str]:
    """Return what knobs of the process become; nothing for one that the experiment leaves to vLLM."""
    env = {}
    if "rollout.batch_invariant" in knobs:
        env["VLLM_BATCH_INVARIANT"] = str(int(knobs["rollout.batch_invariant"] is True))
    if on_cuda and "rollout.model_runner" in knobs:
        env["VLLM_USE_V2_MODEL_RUNNER"] = str(int(knobs["rollout.model_runner"] == "v2"))
    return env


def _visible(devices: tuple[str, ...]) -> str:
    """Return CUDA_VISIBLE_DEVICES for the engine: it takes local rank 0, 1, ... of what it sees, and none on a CPU."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    known = given.split(",") if given else []
    numbers = [int(name.partition(":")[2] or 0) for name in devices if name.startswith("cuda")]
    return ",".join(known[number] if number < len(known) else str(number) for number in numbers)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _unsupported(request: PlacementRequest, world: int, on_cuda: bool) -> dict[str, str]:
    knobs, reasons = request.knobs, {}
    if on_cuda:
        if len(request.devices) < world:
            asked = f"{world} ranks need {world} devices, {len(request.devices)} were given"
            reasons["rollout.tensor_parallel_size"] = asked
        return reasons
    block = knobs.get("rollout.block_size")
    if isinstance(block, int) and block % CPU_BLOCK:
        reasons["rollout.block_size"] = f"vLLM's CPU attention takes multiples of {CPU_BLOCK}, not {block}"
    if knobs.get("rollout.model_runner") == "v2":
        reasons["rollout.model_runner"] = "vLLM's V2 runner needs Triton and a GPU"
    if knobs.get("rollout.batch_invariant") is True:
        reasons["rollout.batch_invariant"] = "vLLM's batch-invariant kernels need Triton and a GPU"
    if knobs.get("rollout.all_reduce_backend") == "custom":
        reasons["rollout.all_reduce_backend"] = "vLLM's custom all-reduce is a CUDA kernel"
    return reasons


def installed() -> str:
    """Return the distribution that brings `vllm` (vllm or vllm-cpu) and its version, or an empty string."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {distribution(name).version}"
        except PackageNotFoundError:
            continue
    return ""

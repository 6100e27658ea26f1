"""How a Megatron-core engine is launched: one process for each tensor-parallel rank; imports neither torch nor it."""

from __future__ import annotations

import os

from xcfg.schema.runtime import Placement, PlacementRequest

from xcfg_megatron.options import parse_options


def placement(request: PlacementRequest) -> Placement:
    """Return ranks, environment and devices, or the knobs that cannot be honoured with reasons.

    Raises ConfigError when the runtime options are not the runtime's.
    """
    options = parse_options(request.options)
    ranks = request.knobs.get("training.tensor_parallel_size", 1)
    world = ranks if isinstance(ranks, int) and ranks >= 1 else 1
    on_cuda = any(device.startswith("cuda") for device in request.devices)
    threads = str(options.threads or max(1, _cores() // world))
    unsupported = {}
    if on_cuda and len(request.devices) < world:
        unsupported["training.tensor_parallel_size"] = (
            f"{world} ranks need {world} devices, {len(request.devices)} were given"
        )
    return Placement(
        world_size=world,
        processes=world,
        env={
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OMP_WAIT_POLICY": "PASSIVE",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        },
        devices=request.devices[:world] if on_cuda else ("cpu",) * world,
        unsupported=unsupported,
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""How a Megatron-core engine is launched: a process for each tensor and context rank; imports neither torch nor it."""

from __future__ import annotations

import os
from importlib.util import find_spec

from xcfg.schema.runtime import Placement, PlacementRequest

from xcfg_megatron.options import parse_options
from xcfg_megatron.switches import CONTEXT_PARALLEL, LAYER_SPEC, TENSOR_PARALLEL

NO_TE = "Transformer Engine is not installed: pip install 'xcfg-megatron[te]' on a machine with CUDA"


def placement(request: PlacementRequest) -> Placement:
    """Return ranks, environment and devices, or the knobs that cannot be honoured with reasons.

    Raises ConfigError when the runtime options are not the runtime's.
    """
    options = parse_options(request.options)
    tensor = _size(request, TENSOR_PARALLEL)
    world = tensor * _size(request, CONTEXT_PARALLEL)
    on_cuda = any(device.startswith("cuda") for device in request.devices)
    threads = str(options.threads or max(1, _cores() // world))
    unsupported = {}
    if on_cuda and len(request.devices) < world:
        blamed = TENSOR_PARALLEL if tensor > len(request.devices) else CONTEXT_PARALLEL
        unsupported[blamed] = f"{world} ranks need {world} devices, {len(request.devices)} were given"
    if request.knobs.get(LAYER_SPEC, "local") != "local" and find_spec("transformer_engine") is None:
        unsupported[LAYER_SPEC] = NO_TE
    return Placement(
        world_size=world,
        processes=world,
        env={
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OMP_WAIT_POLICY": "PASSIVE",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            # On a machine with a GPU, Megatron-core and torch would otherwise find it and use it.
            **({} if on_cuda else {"CUDA_VISIBLE_DEVICES": ""}),
        },
        devices=request.devices[:world] if on_cuda else ("cpu",) * world,
        unsupported=unsupported,
    )


def _size(request: PlacementRequest, path: str) -> int:
    value = request.knobs.get(path, 1)
    return value if isinstance(value, int) and value >= 1 else 1


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""How one side of the runtime `torch` is launched; runs in the supervisor and imports no torch."""

from __future__ import annotations

import os
from importlib.util import find_spec

from xcfg.schema._base import Value
from xcfg.schema.runtime import Placement, PlacementRequest

from xcfg_torch.mixed_knobs import MASTER, OUTPUT, SAME, UNCAST
from xcfg_torch.options import TorchOptions, parse_options

ATTENTION_PATHS = ("training.attention_backend", "rollout.attention_backend")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def placement(request: PlacementRequest) -> Placement:
    """Return ranks, environment and devices for `request`, or the knobs that cannot be honoured with reasons.

    Raises ConfigError when the runtime options are not the runtime's.
    """
    options = parse_options(request.options)
    sharded = request.knobs.get("training.sharding") == "fsdp"
    world = options.fsdp_world_size if sharded else 1
    on_cuda = any(device.startswith("cuda") for device in request.devices)
    return Placement(
        world_size=world,
        processes=world,
        env=_environment(options, world),
        devices=request.devices[:world] if on_cuda else ("cpu",) * world,
        unsupported=_unsupported(request, options, world, on_cuda),
    )


def _environment(options: TorchOptions, world: int) -> dict[str, str]:
    threads = str(options.threads or max(1, _cores() // world))
    # OpenMP reads these at start and never again. Threads that spin while they wait make a decode step up to six
    # times slower as soon as anything else runs; waiting passively changes no number.
    env = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE", **OFFLINE}
    if options.deterministic_algorithms:
        env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return env


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _unsupported(request: PlacementRequest, options: TorchOptions, world: int, on_cuda: bool) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for path in ATTENTION_PATHS:
        reason = _attention_fault(request.knobs.get(path), on_cuda)
        if reason:
            reasons[path] = reason
    if world > 1 and on_cuda and len(request.devices) < world:
        reasons["training.sharding"] = (
            f"fsdp over {world} ranks needs {world} devices, {len(request.devices)} were given: NCCL refuses "
            "two ranks on one device; give more --training-devices or a smaller fsdp_world_size"
        )
    if world > 1 and request.side != "training":
        reasons["training.sharding"] = f"only the training side is sharded, not {request.side!r}"
    if world == 1 and request.knobs.get("training.sharding") == "fsdp":
        reasons["training.sharding"] = (
            f"fsdp over fsdp_world_size={options.fsdp_world_size} shards nothing; use 2 or more"
        )
    for path, default in ((MASTER, SAME), (OUTPUT, UNCAST)):
        value = request.knobs.get(path, default)
        if value != default and request.knobs.get("training.sharding") != "fsdp":
            reasons[path] = f"{value!r} is a cast of FSDP2, and nothing is sharded; set training.sharding to fsdp"
    return reasons


def _attention_fault(value: Value, on_cuda: bool) -> str:
    if value != "flash_attention_2":
        return ""
    if not on_cuda:
        return "flash_attention_2 has no CPU kernel"
    if find_spec("flash_attn") is None:
        return "flash_attention_2 needs the package flash-attn, which is not installed"
    return ""

"""What an engine of one side is started with: its placement, where its operators resolve, its launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xcfg.flow.checkpoints import Checkpoint
from xcfg.operators import ResolutionContext
from xcfg.plugin._resolve import resolve
from xcfg.running.launch import LaunchSpec
from xcfg.runtime.fingerprints import fingerprints
from xcfg.runtime.machine import memory_gib
from xcfg.schema._base import Value
from xcfg.schema.codec import evolve
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.runtime import Placement, PlacementRequest, RuntimeDescriptor
from xcfg.schema.worker import PROTOCOL, WorkerSpec

MAX_PROCESSES = 512
"""Of one side on one machine: beyond it a number is a slip, and starting them would take the machine down."""


def place(
    descriptor: RuntimeDescriptor,
    side: str,
    knobs: Mapping[str, Value],
    options: Mapping[str, Any],
    devices: tuple[str, ...],
) -> Placement:
    """Return where the runtime would run; another kind of device than was asked for makes it unsupported."""
    ask: Any = resolve(descriptor.placement, install_hint=descriptor.install_hint)
    placement: Placement = ask(PlacementRequest(side=side, knobs=dict(knobs), options=dict(options), devices=devices))
    if placement.processes > MAX_PROCESSES:
        reason = f"the {side} side would start {placement.processes} processes on this machine, over {MAX_PROCESSES}"
        return evolve(placement, unsupported={**placement.unsupported, f"processes.{side}": reason})
    asked, given = ({name.split(":")[0] for name in names} for names in (devices, placement.devices))
    if asked != given:
        reason = f"asked for {', '.join(sorted(asked))}, the runtime would run on {', '.join(sorted(given))}"
        return evolve(placement, unsupported={**placement.unsupported, f"devices.{side}": reason})
    return placement


def resolution_context(
    descriptor: RuntimeDescriptor, knobs: Mapping[str, Value], placement: Placement, *, strict: bool, allow_smoke: bool
) -> ResolutionContext:
    """Return what an operator backend must be able to serve on this side."""
    return ResolutionContext(
        device=placement.devices[0].split(":")[0],
        dtype=str(knobs.get("rollout.dtype") or knobs.get("training.compute_dtype") or ""),
        topology={name.split(".")[-1]: value for name, value in knobs.items() if isinstance(value, int)},
        runtime=descriptor.name,
        strict=strict,
        allow_smoke=allow_smoke,
    )


def launch_spec(
    descriptor: RuntimeDescriptor,
    side: str,
    *,
    knobs: dict[str, Value],
    options: dict[str, Any],
    placement: Placement,
    bindings: dict[str, OperatorBinding],
    checkpoint: Checkpoint,
    definitions: Mapping[str, KnobDefinition],
    rollout: str = "",
    seed: int = 0,
    fresh: bool = False,
    last: bool = False,
    memory_budget: int | None = None,
) -> LaunchSpec:
    """Return the launch of one engine. rollout: folder of the frozen rollout; empty where there is none yet."""
    machine = memory_gib()
    limits = [memory_budget] if memory_budget is not None else []
    limits += [int(machine * 2**30)] if machine is not None else []
    spec = WorkerSpec(
        protocol=PROTOCOL,
        runtime=descriptor.name,
        adapter=descriptor.adapter,
        side=side,
        knobs=knobs,
        options=options,
        operators=bindings,
        checkpoint=str(checkpoint.folder or ""),
        checkpoint_uri=checkpoint.uri,
        rollout=rollout,
        world_size=placement.world_size,
        devices=placement.devices,
        seed=seed,
        memory_bytes=min(limits, default=None),
    )
    prints = fingerprints(
        runtime=descriptor.name,
        side=side,
        knobs=knobs,
        definitions=definitions,
        options=options,
        checkpoint=checkpoint.digest,
        placement=placement,
        bindings=bindings,
    )
    return LaunchSpec(spec=spec, placement=placement, fingerprints=prints, fresh=fresh, last=last)

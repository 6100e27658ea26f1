"""Which runtimes a run uses: the two that the person named, and one that can score the precision budget."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xcfg.errors import UsageError
from xcfg.flow.options import RunOptions
from xcfg.plugin._compat import unmet
from xcfg.plugin.manager import PluginManager
from xcfg.running.external import EXTERNAL, describe
from xcfg.schema.experiment import Experiment
from xcfg.schema.runtime import RuntimeDescriptor

DEVICE = re.compile(r"[a-z]+(:[0-9]{1,3})?")


@dataclass(frozen=True)
class Runtimes:
    """rollout and training as named; reference: None when no installed runtime has the arm."""

    rollout: RuntimeDescriptor
    training: RuntimeDescriptor
    reference: RuntimeDescriptor | None

    def of(self, side: str) -> RuntimeDescriptor:
        """Return the runtime of `rollout` or `training`."""
        return self.rollout if side == "rollout" else self.training


def choose_runtimes(experiment: Experiment, manager: PluginManager, options: RunOptions) -> Runtimes:
    """Return usable runtimes. Raises UnknownNameError, PluginError, MissingDependencyError or UsageError."""
    return Runtimes(
        rollout=_usable(experiment, manager, options, options.rollout, "rollout"),
        training=_usable(experiment, manager, options, options.training, "training"),
        reference=_reference(manager, options),
    )


def check_devices(record: RuntimeDescriptor, side: str, devices: object) -> None:
    """Raise UsageError for device names that are malformed or of a type that the runtime does not declare."""
    hint = f"The runtime {record.name!r} runs on: {', '.join(record.devices)}; e.g. cuda:0,cuda:1."
    if not isinstance(devices, (tuple, list)) or not devices:
        raise UsageError(f"the {side} devices are {devices!r}, not a list of names", hint=hint)
    for device in devices:
        if not isinstance(device, str) or not DEVICE.fullmatch(device) or device.split(":")[0] not in record.devices:
            raise UsageError(f"the runtime {record.name!r} has no device {device!r} for the {side} side", hint=hint)


def _usable(
    experiment: Experiment, manager: PluginManager, options: RunOptions, name: str, side: str
) -> RuntimeDescriptor:
    record: RuntimeDescriptor = manager.runtime(name).record
    if record.name == EXTERNAL.name:
        record = describe(experiment.runtime_options)
    devices = options.rollout_devices if side == "rollout" else options.training_devices
    check_devices(record, side, devices)
    if not record.arms.get(side):
        able = ", ".join(sorted(record.arms)) or "none"
        raise UsageError(
            f"the runtime {name!r} cannot score the {side} side", hint=f"It scores: {able}. Name another runtime."
        )
    return record


def _reference(manager: PluginManager, options: RunOptions) -> RuntimeDescriptor | None:
    able = [
        item.record
        for item in manager.runtimes()
        if item.record.arms.get("reference") and not unmet(item.record.requires)
    ]
    chosen = [record for record in able if record.name in (options.training, options.rollout)]
    return next(iter(chosen or sorted(able, key=lambda record: record.name)), None)

"""The journey of `xcfg doctor`: look at the installation, then at two sets of arguments; nothing is built or scored."""

from __future__ import annotations

from dataclasses import dataclass

from xcfg.arguments import SideArguments, check_sides, understand
from xcfg.arguments.check import has_traps
from xcfg.config.engine_arguments import read_arguments
from xcfg.errors import PluginError, UsageError, XcfgError
from xcfg.plugin import known
from xcfg.plugin._compat import core_version, installed_version, unmet
from xcfg.plugin._resolve import describe, resolve
from xcfg.plugin.manager import PluginManager, Provided
from xcfg.runtime.installed import clashes, engines
from xcfg.runtime.machine import device_kinds, read_machine, variables
from xcfg.schema.arguments import ArgumentTable
from xcfg.schema.doctor import DOCTOR, Absent, ArgumentCheck, DoctorSummary, RuntimeHealth
from xcfg.schema.runtime import RuntimeDescriptor

PLATFORMS = ("cpu", "cuda")


@dataclass(frozen=True)
class DoctorOptions:
    """What was asked. rollout, training: runtimes, empty where none was named. arguments: text or @file per side.

    platform: cpu or cuda; empty: cuda where an accelerator was found.
    """

    rollout: str = ""
    training: str = ""
    rollout_args: str | None = None
    training_args: str | None = None
    platform: str = ""


DEFAULTS = {"rollout": "vllm", "training": "megatron"}
"""The pair that arguments are checked for unless runtimes are named."""


def doctor(manager: PluginManager, options: DoctorOptions) -> DoctorSummary:
    """Return the state of this installation and, where arguments were given, what is known of them.

    Imports no engine and no torch; without arguments torch may be asked in a process of its own whether it can use an
    accelerator. exit_code: 2 when nothing usable is installed, or a runtime named without arguments is not usable;
    1 when arguments hold traps; else 0. Raises UnknownNameError, UsageError or ConfigError for bad input.
    """
    asked = options.rollout_args is not None or options.training_args is not None
    if options.platform and options.platform not in PLATFORMS:
        raise UsageError(f"no platform {options.platform!r} is known", hint=f"Name one of {', '.join(PLATFORMS)}.")
    machine = read_machine(ask_torch=not asked)
    here = device_kinds(machine)
    offered = manager.runtimes()
    health = tuple(_health(item, here) for item in offered)
    arguments = _check(manager, options, here) if asked else None
    named = [name for name in (options.rollout, options.training) if name]
    return DoctorSummary(
        schema_version=DOCTOR,
        exit_code=_exit_code(health, [] if asked else named, manager, arguments),
        core=core_version(),
        machine=machine,
        runtimes=health,
        absent=_absent(manager),
        clashes=clashes(item.record for item in offered),
        variables=variables(),
        arguments=arguments,
    )


def _health(item: Provided[RuntimeDescriptor], here: tuple[str, ...]) -> RuntimeHealth:
    record = item.record
    missing = unmet(record.requires)
    devices = tuple(device for device in record.devices if device in here)
    return RuntimeHealth(
        name=record.name,
        plugin=item.plugin,
        distribution=item.distribution,
        version=item.version,
        usable=not missing and bool(devices),
        engines=engines(record),
        sides=tuple(side for side, arms in record.arms.items() if arms),
        devices=record.devices,
        here=devices,
        missing=missing,
        cure=record.install_hint if missing else "",
    )


def _absent(manager: PluginManager) -> tuple[Absent, ...]:
    """Return packages of the project that are not here, plugins that cannot be used, and checkpoints' needs."""
    entries = manager.plugins()
    there = {package for package in known.PACKAGES if installed_version(package)}
    found = [
        Absent(package=entry.distribution, brings=entry.name, reason=f"{entry.status}: {entry.reason}", cure="")
        for entry in entries
        if entry.status != "active"
    ]
    brings: dict[str, list[str]] = {}
    for noun, table in (("runtime", known.RUNTIMES), ("command", known.COMMANDS), ("operator", known.OPERATORS)):
        for name, package in table.items():
            if package not in there:
                brings.setdefault(package, []).append(f"{noun} {name}")
    for package in sorted(known.PACKAGES - there):
        listed = ", ".join(brings.get(package, ()))
        found.append(Absent(package=package, brings=listed, reason="not installed", cure=f"pip install {package}"))
    for item in manager.checkpoints():
        if needs := unmet(item.record.requires):
            name = f"checkpoint builtin:{item.record.name}"
            found.append(
                Absent(package=item.distribution, brings=name, reason="; ".join(needs), cure=item.record.install_hint)
            )
    return tuple(found)


def _exit_code(
    health: tuple[RuntimeHealth, ...], named: list[str], manager: PluginManager, arguments: ArgumentCheck | None
) -> int:
    if arguments is not None:
        return 1 if has_traps(arguments) else 0
    for name in named:
        if name not in {item.name for item in health}:
            manager.runtime(name)  # raises, with the package that would bring it
    usable = {item.name for item in health if item.usable}
    synthetic = {item.record.name for item in manager.runtimes() if item.record.synthetic}
    engines_here = {item.name for item in health if item.usable and item.engines} - synthetic
    return 0 if usable.issuperset(named) and (named or engines_here) else 2


def _check(manager: PluginManager, options: DoctorOptions, here: tuple[str, ...]) -> ArgumentCheck:
    rollout = _side(manager, "rollout", options.rollout, options.rollout_args)
    training = _side(manager, "training", options.training, options.training_args)
    platform = options.platform or here[-1]
    command = f"xcfg run experiment.json --rollout {rollout.runtime} --training {training.runtime}"
    devices = {item.record.name: item.record.devices for item in manager.runtimes()}
    for side in (rollout, training):
        if platform != "cpu" and platform in devices.get(side.runtime, ()):
            command += f" --{side.side}-devices {platform}:0"
    return check_sides(rollout, training, platform=platform, knobs=manager.knobs(), command=command)


def _side(manager: PluginManager, side: str, name: str, text: str | None) -> SideArguments:
    runtime = name or DEFAULTS[side]
    given = None if text is None else read_arguments(text, source=f"--{side}-args")
    table = _table(manager, runtime, side) if given is not None or name else _table_if_there(manager, runtime, side)
    found = understand(side, runtime, table, None if given is None else given.settings)
    return found if given is None else SideArguments(side, runtime, table, found.settings, given.words)


def _table(manager: PluginManager, name: str, side: str) -> ArgumentTable:
    """Return the table of a runtime whose engine need not be installed; its package must be."""
    provided = next((item for item in manager.runtimes() if item.record.name == name), None)
    if provided is None:
        found: Provided[RuntimeDescriptor] = manager.runtime(name)
        provided = found
    record = provided.record
    if not record.arms.get(side):
        able = ", ".join(sorted(record.arms)) or "none"
        raise UsageError(f"the runtime {name!r} has no {side} side", hint=f"It scores: {able}. Name another runtime.")
    if not record.arguments:
        raise PluginError(
            f"the runtime {name!r} has no table of arguments",
            hint="Its package may declare one: RuntimeDescriptor.arguments.",
        )
    try:
        table = resolve(record.arguments, owner=provided.plugin)()
    except XcfgError:
        raise
    except Exception as error:
        raise PluginError(f"{record.arguments!r} of plugin {provided.plugin!r} raised {describe(error)}") from error
    if not isinstance(table, ArgumentTable):
        raise PluginError(f"{record.arguments!r} returned {type(table).__name__}, not ArgumentTable")
    return table


def _table_if_there(manager: PluginManager, name: str, side: str) -> ArgumentTable:
    try:
        return _table(manager, name, side)
    except (UsageError, PluginError):
        return ArgumentTable()

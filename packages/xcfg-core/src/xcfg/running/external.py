"""The runtime `external`: any command that speaks the worker protocol, torchrun included, is an engine.

runtime_options of the side:

    {"command": ["torchrun", "--nproc-per-node", "2", "score.py"], "world_size": 2,
     "env": {"NCCL_DEBUG": "WARN"}, "arms": ["training"], "adapter": "my_module:Adapter"}

The program is the adapter. It is given the knob values and says with its own readback what became of each; a
knob that it does not report is unobservable, never applied. `adapter` is only for a command that ends in `-m
xcfg.running.serve` and so leaves the protocol to xcfg.
"""

from __future__ import annotations

from typing import Any

from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema.codec import evolve
from xcfg.schema.names import Arm
from xcfg.schema.runtime import Capability, Placement, PlacementRequest, RuntimeDescriptor

OPTIONS = ("command", "world_size", "env", "arms", "adapter")
ARMS: dict[str, tuple[str, ...]] = {
    "training": (Arm.TRAINING.value,),
    "rollout": (Arm.ROLLOUT_PREFILL.value, Arm.ROLLOUT_DECODE.value),
}
_ANY = "the command is given the value; what it does not report back is unobservable"

EXTERNAL = RuntimeDescriptor(
    name="external",
    summary="A command of your own that speaks the worker protocol, for example your trainer under torchrun",
    adapter="",
    placement="xcfg.running.external:place",
    arms=ARMS,
    operators=(),
    forced_replay=True,
    capabilities=tuple(Capability(path="*", side=side, note=_ANY) for side in ARMS),
    devices=("cpu", "cuda"),
    install_hint="Nothing to install: name your program in runtime_options.<side>.command.",
)
"""As declared before an experiment narrows it with `arms`; capability path `*` means every knob."""


def place(request: PlacementRequest) -> Placement:
    """Return how the user's command is launched; ConfigError names the option at fault."""
    options = request.options
    where = f"$.runtime_options.{request.side}"
    _check_names(options, where)
    command = options.get("command")
    if not isinstance(command, (list, tuple)) or not command or not all(isinstance(item, str) for item in command):
        raise ConfigError(
            "the runtime 'external' needs `command`, a list of words",
            path=f"{where}.command",
            hint='For example ["torchrun", "--nproc-per-node", "2", "score.py"].',
        )
    world_size = options.get("world_size", 1)
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ConfigError(
            f"world_size is {world_size!r}",
            path=f"{where}.world_size",
            hint="The number of ranks that report, 1 or more.",
        )
    env = options.get("env", {})
    if not isinstance(env, dict) or not all(isinstance(item, str) for pair in env.items() for item in pair):
        raise ConfigError("env must map names to strings", path=f"{where}.env")
    declared_arms(request.side, options)
    return Placement(world_size=world_size, processes=1, env=dict(env), command=tuple(command), devices=request.devices)


def declared_arms(side: str, options: dict[str, Any]) -> tuple[str, ...]:
    """Return the arms that the command can score on `side`: option `arms`, else every arm of the side."""
    possible = ARMS.get(side, ())
    arms = options.get("arms", list(possible))
    if not isinstance(arms, (list, tuple)) or not arms:
        raise ConfigError("arms must be a list of arms", path=f"$.runtime_options.{side}.arms", hint=f"Of {possible}.")
    for arm in arms:
        if arm not in possible:
            raise ConfigError(
                f"{arm!r} is no arm of side {side!r}",
                path=f"$.runtime_options.{side}.arms",
                hint=did_you_mean(str(arm), possible),
            )
    return tuple(arms)


def describe(options: dict[str, dict[str, Any]]) -> RuntimeDescriptor:
    """Return EXTERNAL narrowed to the arms that the options of each side declare (side -> options)."""
    arms = {side: declared_arms(side, options.get(side, {})) for side in ARMS}
    return evolve(EXTERNAL, arms=arms, forced_replay=Arm.ROLLOUT_DECODE.value in arms["rollout"])


def _check_names(options: dict[str, Any], where: str) -> None:
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(
                f"the runtime 'external' has no option {name!r}",
                path=f"{where}.{name}",
                hint=did_you_mean(name, OPTIONS),
            )

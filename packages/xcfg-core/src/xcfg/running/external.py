"""The runtime `external`: any command that speaks the worker protocol, torchrun included, is an engine.

runtime_options of the side:

    {"command": ["torchrun", "--nproc-per-node", "2", "score.py"], "world_size": 2,
     "env": {"NCCL_DEBUG": "WARN"}, "arms": ["training"], "adapter": "my_module:Adapter",
     "sources": ["helpers.py", "src/my_trainer", "my_losses"]}

The program is the adapter. It is given the knob values and says with its own readback what became of each; a
knob that it does not report is unobservable, never applied. `adapter` is only for a command that ends in `-m
xcfg.running.serve` and so leaves the protocol to xcfg.

What the command runs enters the scoring key by its bytes, see `programs`; `sources` adds to that. Words and sources
are resolved as the command itself resolves them: from the folder in which xcfg was started.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema.codec import evolve
from xcfg.schema.names import Arm
from xcfg.schema.runtime import Capability, Placement, PlacementRequest, RuntimeDescriptor

OPTIONS = ("command", "world_size", "env", "arms", "adapter", "sources")
MODULE_FLAG = re.compile(r"--module|-[bBdEiIOPqsSuvx]*m")
"""`-m` of python and of launchers, alone or behind other one-letter flags of python."""
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
OWN_FACTS = ("torch", "xcfg")
"""Packages that every scoring key names already; as the module of a launcher they are not read again."""
Programs = dict[str, tuple[Path, ...]]
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
    _check_programs(command, options, where)
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


def programs(command: Sequence[str], options: Mapping[str, Any]) -> Programs:
    """Return label -> files and folders of all that `command` is known to run, for the scoring key.

    These are its words that are files; the whole top-level package of the module behind `-m`, of a word `module:attr`
    and of option `adapter`; and every entry of `sources`. What those import, and a first word that is found on PATH,
    are not among them. An empty tuple: it is not to be found here.
    """
    env = options.get("env", {})
    found: Programs = dict(_words(command, env))
    for number, name in enumerate(_modules(command)):
        if name.split(".")[0] not in OWN_FACTS:
            found[f"module:{number}:{name}"] = _module_roots(name, env)
    for number, item in enumerate(options.get("sources", ())):
        place = Path(item)
        found[f"sources:{number}:{place.name}"] = (place,) if os.path.exists(item) else _module_roots(item, env)
    if "adapter" in options:
        found[f"adapter:{options['adapter']}"] = _module_roots(str(options["adapter"]).partition(":")[0], env)
    return found


def _check_programs(command: Sequence[str], options: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for what cannot be found: an edit of it would go unnoticed.

    With `sources` the user has said what counts, and a module need not be importable here.
    """
    sources = options.get("sources", [])
    if not isinstance(sources, (list, tuple)) or not all(isinstance(item, str) and item for item in sources):
        raise ConfigError("sources must be a list of files, folders or modules", path=f"{where}.sources")
    for label, roots in programs(command, options).items():
        kind, _, name = label.partition(":")
        if kind == "sources":
            number = int(name.partition(":")[0])
            if not roots or any(root.is_dir() and not any(root.rglob("*.py")) for root in roots):
                raise ConfigError(
                    f"the source {sources[number]!r} is no file, no folder with .py files and no module that is found",
                    path=f"{where}.sources[{number}]",
                    hint="Paths are resolved from the folder in which xcfg is started. Name files that are not .py.",
                )
        elif not roots and not sources and kind in ("module", "adapter"):
            wanted = name if kind == "adapter" else name.partition(":")[2]
            raise ConfigError(
                f"the module of {wanted!r} is not found here, so an edit of it would go unnoticed",
                path=f"{where}.{'adapter' if kind == 'adapter' else 'command'}",
                hint="Start xcfg where it can be imported, or name its files, folder or module in `sources`.",
            )


def _words(command: Sequence[str], env: Mapping[str, str]) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """Yield label and place of every word that is a program's file or folder, or `module:attr` of a known module."""
    for number, word in enumerate(command):
        module, colon, attribute = word.partition(":")
        # os.path.isfile says no to a word too long for a file name; Path.is_file raises.
        if os.path.isfile(word) or os.path.isfile(os.path.join(word, "__main__.py")):
            yield f"{number}:{Path(word).name}", (Path(word),)
        elif colon and MODULE.fullmatch(attribute) and _module_roots(module, env):
            yield f"{number}:{word}", _module_roots(module, env)


def _modules(command: Sequence[str]) -> Iterator[str]:
    """Yield the module behind every `-m` of `command`: the first word after it that can be a module's name."""
    for number, word in enumerate(command):
        if MODULE_FLAG.fullmatch(word):
            yield from [item for item in command[number + 1 :] if MODULE.fullmatch(item)][:1]


def _module_roots(name: str, env: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the file or folders of the top-level package of module `name`, as the command would import it.

    Looked for here, in PYTHONPATH of option `env` and where this process finds modules; empty when it is nowhere.
    """
    if not MODULE.fullmatch(name):
        return ()
    top = name.split(".")[0]
    more = [item for item in env.get("PYTHONPATH", "").split(os.pathsep) if item]
    found: ModuleSpec | None = PathFinder.find_spec(top, [os.getcwd(), *more, *sys.path])
    if found is None:
        with contextlib.suppress(ValueError):  # a module in memory that does not say where it is from
            found = find_spec(top)
    if found is None:
        return ()
    places = found.submodule_search_locations or (found.origin,)
    return tuple(Path(place) for place in places if place and os.path.exists(place))


def _check_names(options: dict[str, Any], where: str) -> None:
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(
                f"the runtime 'external' has no option {name!r}",
                path=f"{where}.{name}",
                hint=did_you_mean(name, OPTIONS),
            )

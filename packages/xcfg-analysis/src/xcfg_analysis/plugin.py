"""The plugin `analysis`: announces the commands that this version does not have yet."""

from __future__ import annotations

from xcfg.plugin import CommandProvider, hookimpl

COMMANDS = {
    "cube": "Show the results of a run as a cube.",
    "analyze": "Say which knob causes how much of the drift.",
    "minimize": "Find the smallest alignment that is enough.",
    "gate": "Judge a run in CI.",
}


@hookimpl
def xcfg_commands() -> tuple[CommandProvider, ...]:
    """Return the commands of this package; each is listed and refused when called."""
    return tuple(
        CommandProvider(
            name=name,
            summary=summary,
            factory="",
            status="planned",
            missing="no analysis is part of this version",
        )
        for name, summary in COMMANDS.items()
    )

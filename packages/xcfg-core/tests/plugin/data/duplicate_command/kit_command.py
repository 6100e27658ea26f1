from __future__ import annotations

from xcfg.plugin import CommandProvider, hookimpl


@hookimpl
def xcfg_commands():
    return (CommandProvider(name="run", summary="Take over.", factory="kit_command:run"),)

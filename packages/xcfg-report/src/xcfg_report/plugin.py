"""The plugin `report`: announces commands and renderers that this version does not have yet."""

from __future__ import annotations

from xcfg.plugin import CommandProvider, RendererDescriptor, hookimpl

COMMANDS = {"report": "Write a run as a page or a picture.", "view": "Look through a run."}
MISSING = (
    "no renderer and no viewer is part of this version; `xcfg analyze RUN` prints the page of a run, and "
    "`xcfg gate RUN --junit FILE` writes JUnit XML (both of xcfg-analysis)"
)
RENDERERS = {"html": "One page.", "trace": "A timeline for trace viewers."}


@hookimpl
def xcfg_renderers() -> tuple[RendererDescriptor, ...]:
    """Return the renderers of this package; each is listed and refused when named."""
    return tuple(
        RendererDescriptor(
            name=name,
            summary=summary,
            factory="",
            status="planned",
            missing=MISSING,
        )
        for name, summary in RENDERERS.items()
    )


@hookimpl
def xcfg_commands() -> tuple[CommandProvider, ...]:
    """Return the commands of this package; each is listed and refused when called."""
    return tuple(
        CommandProvider(
            name=name,
            summary=summary,
            factory="",
            status="planned",
            missing=MISSING,
        )
        for name, summary in COMMANDS.items()
    )

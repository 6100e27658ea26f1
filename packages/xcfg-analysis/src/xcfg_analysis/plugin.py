"""The plugin `analysis`: fault signatures, `xcfg analyze`, `xcfg minimize`, and announced commands."""

from __future__ import annotations

from xcfg.plugin import CommandProvider, SignatureDescriptor, hookimpl

from xcfg_analysis.catalogue import SIGNATURES

PLANNED = {
    "cube": "Show the results of a run as a cube.",
    "gate": "Judge a run in CI.",
}


@hookimpl
def xcfg_signatures() -> tuple[SignatureDescriptor, ...]:
    """Return the signatures of this package."""
    return SIGNATURES


@hookimpl
def xcfg_commands() -> tuple[CommandProvider, ...]:
    """Return `analyze`, `minimize`, and the planned commands, which are listed and refused when called."""
    analyze = CommandProvider(
        name="analyze",
        summary="Name the fault behind the drift in a dump.",
        factory="xcfg_analysis.command:analyze",
    )
    minimize = CommandProvider(
        name="minimize",
        summary="Find the smallest alignment that is enough.",
        factory="xcfg_analysis.minimize.command:minimize",
    )
    planned = tuple(
        CommandProvider(
            name=name,
            summary=summary,
            factory="",
            status="planned",
            missing="runs cannot be analysed in this version, only dumps (xcfg analyze)",
        )
        for name, summary in PLANNED.items()
    )
    return (analyze, minimize, *planned)

"""The plugin `analysis`: signatures, `analyze`, `cube`, `minimize`, an analysis after every run; announces the rest."""

from __future__ import annotations

from xcfg.plugin import CommandProvider, SignatureDescriptor, hookimpl

from xcfg_analysis.catalogue import SIGNATURES

PLANNED = {
    "gate": "Judge a run in CI.",
}


@hookimpl
def xcfg_signatures() -> tuple[SignatureDescriptor, ...]:
    """Return the signatures of this package."""
    return SIGNATURES


@hookimpl
def xcfg_commands() -> tuple[CommandProvider, ...]:
    """Return what works, and the planned commands, which are listed and refused when called."""
    analyze = CommandProvider(
        name="analyze",
        summary="Say what makes the sides drift, from a run or a dump.",
        factory="xcfg_analysis.command:analyze",
    )
    minimize = CommandProvider(
        name="minimize",
        summary="Find the smallest alignment that is enough.",
        factory="xcfg_analysis.minimize.command:minimize",
    )
    cube = CommandProvider(
        name="cube", summary="Show the results of a run as a cube.", factory="xcfg_analysis.cube.command:cube"
    )
    planned = tuple(
        CommandProvider(
            name=name,
            summary=summary,
            factory="",
            status="planned",
            missing="in this version a run can be analysed (xcfg analyze) and listed (xcfg cube), no more",
        )
        for name, summary in PLANNED.items()
    )
    return (analyze, cube, minimize, *planned)


@hookimpl
def xcfg_after_run(folder: str, experiment: str) -> None:
    """Leave an analysis in the run that has ended."""
    from xcfg_analysis.page.after_run import keep_analysis

    keep_analysis(folder, experiment)

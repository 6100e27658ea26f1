"""The plugin `analysis`: signatures, `xcfg analyze`, `xcfg cube`, an analysis after every run; announces the rest."""

from __future__ import annotations

from xcfg.plugin import CommandProvider, SignatureDescriptor, hookimpl

from xcfg_analysis.catalogue import SIGNATURES

PLANNED = {
    "minimize": "Find the smallest alignment that is enough.",
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
    return (analyze, cube, *planned)


@hookimpl
def xcfg_after_run(folder: str, experiment: str) -> None:
    """Leave an analysis in the run that has ended."""
    from xcfg_analysis.page.after_run import keep_analysis

    keep_analysis(folder, experiment)

"""The plugin `analysis`: signatures, profiles, four commands that read runs, and an analysis after every run."""

from __future__ import annotations

from xcfg.plugin import CommandProvider, Profile, SignatureDescriptor, hookimpl

from xcfg_analysis.catalogue import SIGNATURES
from xcfg_analysis.rules.presets import PROFILES

COMMANDS = tuple(
    CommandProvider(name=name, summary=summary, factory=f"xcfg_analysis.{place}")
    for name, summary, place in (
        ("analyze", "Say what makes the sides drift, from a run or a dump.", "command:analyze"),
        ("cube", "Show the results of a run as a cube.", "cube.command:cube"),
        ("gate", "Give one exit code for a run, and files for CI.", "gate.command:gate"),
        ("minimize", "Find the smallest alignment that is enough.", "minimize.command:minimize"),
    )
)


@hookimpl
def xcfg_signatures() -> tuple[SignatureDescriptor, ...]:
    """Return the signatures of this package."""
    return SIGNATURES


@hookimpl
def xcfg_profiles() -> tuple[Profile, ...]:
    """Return the profiles A0 to A5."""
    return PROFILES


@hookimpl
def xcfg_commands() -> tuple[CommandProvider, ...]:
    """Return the commands that read a run."""
    return COMMANDS


@hookimpl
def xcfg_after_run(folder: str, experiment: str) -> None:
    """Leave an analysis in the run that has ended."""
    from xcfg_analysis.page.after_run import keep_analysis

    keep_analysis(folder, experiment)

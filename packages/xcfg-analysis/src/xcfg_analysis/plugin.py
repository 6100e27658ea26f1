"""The plugin `analysis`: signatures, profiles, four commands, an analysis after every run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xcfg.plugin import CommandProvider, Profile, SignatureDescriptor, hookimpl

from xcfg_analysis.catalogue import SIGNATURES
from xcfg_analysis.rules.presets import PROFILES

if TYPE_CHECKING:
    from xcfg.schema.summary import RunSummary

COMMANDS = tuple(
    CommandProvider(name=name, summary=summary, factory=f"xcfg_analysis.{place}")
    for name, summary, place in (
        ("analyze", "Say what makes the sides drift, from a run or a dump.", "command:analyze"),
        ("cube", "Show the results of a run as a cube.", "cube.command:cube"),
        ("minimize", "Find the smallest alignment that is enough.", "minimize.command:minimize"),
        ("gate", "Give one exit code for a run, and files for CI.", "gate.command:gate"),
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
    """Return `analyze`, `cube`, `minimize` and `gate`."""
    return COMMANDS


@hookimpl
def xcfg_after_run(summary: RunSummary, folder: str, experiment: str) -> None:
    """Leave an analysis in the run that has ended."""
    from xcfg_analysis.page.after_run import keep_analysis

    keep_analysis(summary, folder, experiment)

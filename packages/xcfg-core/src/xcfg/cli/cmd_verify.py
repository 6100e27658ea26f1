"""`xcfg verify [PATH]`: check stored evidence offline."""

from __future__ import annotations

from pathlib import Path

import click

from xcfg.cli._output import Session, common_options, emit, pass_session
from xcfg.errors import ArtifactError
from xcfg.schema.summary import VerifySummary


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--seals-only", is_flag=True, help="Check hashes only; nothing is recomputed and torch is not imported.")
@common_options
@pass_session
def verify(session: Session, path: Path, seals_only: bool) -> None:
    """Check every seal under PATH and recompute every comparison from the tensors it came from.

    PATH: a runs folder or a part of it, the folder of `xcfg compare --output`, or a frozen rollout.
    """
    from xcfg.flow.verify import verify as verify_journey

    summary = verify_journey(path, seals_only=seals_only)
    emit(session, summary, _show)
    if not all(check.ok for check in summary.attempts):
        raise SystemExit(ArtifactError.exit_code)


def _show(summary: VerifySummary) -> None:
    for check in summary.attempts:
        click.echo(f"{'ok  ' if check.ok else 'FAIL'} {check.path}")
        for reason in check.reasons:
            click.echo(f"       {reason}")
    bad = sum(not check.ok for check in summary.attempts)
    click.echo(f"{len(summary.attempts) - bad} ok, {bad} failed")

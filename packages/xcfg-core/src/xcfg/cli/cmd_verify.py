"""`xcfg verify [PATH]`: check stored evidence offline."""

from __future__ import annotations

from pathlib import Path

import click

from xcfg.cli._output import Session, common_options, emit, pass_session
from xcfg.errors import ArtifactError, InterruptedRunError
from xcfg.schema.summary import VerifySummary


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--seals-only", is_flag=True, help="Check hashes only; nothing is recomputed and torch is not imported.")
@common_options
@pass_session
def verify(session: Session, path: Path, seals_only: bool) -> None:
    """Check every seal under PATH and recompute every comparison from the tensors it came from.

    A planned case without a sealed result is named: `open` where its run never ended (exit 130), FAIL where it was
    sealed and is gone (exit 3, as for everything that was altered).

    PATH: a runs folder or a part of it, the folder of `xcfg compare --output`, or a frozen rollout.
    """
    from xcfg.flow.verify import verify as verify_journey

    summary = verify_journey(path, seals_only=seals_only)
    emit(session, summary, _show)
    wrong = [check for check in summary.attempts if not check.ok]
    if not all(check.unfinished for check in wrong):
        raise SystemExit(ArtifactError.exit_code)
    if wrong:
        raise SystemExit(InterruptedRunError.exit_code)


def _show(summary: VerifySummary) -> None:
    for check in summary.attempts:
        click.echo(f"{'ok  ' if check.ok else 'open' if check.unfinished else 'FAIL'} {check.path}")
        for reason in check.reasons:
            click.echo(f"       {reason}")
    good = sum(check.ok for check in summary.attempts)
    unfinished = sum(check.unfinished for check in summary.attempts)
    click.echo(
        f"{good} ok, {len(summary.attempts) - good - unfinished} failed"
        + (f", {unfinished} planned cases never ended" if unfinished else "")
    )

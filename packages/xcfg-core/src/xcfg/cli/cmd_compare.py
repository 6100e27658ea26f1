"""`xcfg compare FILE` or `xcfg compare ROLLOUT TRAIN`: the comparison of a dump that somebody already has."""

from __future__ import annotations

from pathlib import Path

import click

from xcfg.cli._output import Session, common_options, emit, pass_session
from xcfg.cli._run_table import show_edges, show_run
from xcfg.schema.codec import evolve
from xcfg.schema.summary import RunSummary


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("train", type=click.Path(path_type=Path), required=False)
@click.option(
    "--format", "reader", metavar="NAME", help="The dump reader to use instead of the one that recognises FILE."
)
@click.option("--train-format", "train_reader", metavar="NAME", help="The same for TRAIN.")
@click.option("--redact", is_flag=True, help="Replace sample and token ids by salted hashes, and name no file.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Keep columns and result in this new folder, for `xcfg verify`."
)
@common_options
@pass_session
def compare(
    session: Session,
    file: Path,
    train: Path | None,
    reader: str | None,
    train_reader: str | None,
    redact: bool,
    output: Path | None,
) -> None:
    """Compare the two log probabilities per token in FILE, or of FILE (one side) and TRAIN (the other)."""
    from xcfg.flow.compare import open_dump, summarise
    from xcfg.flow.kept import keep, refuse_existing

    if output is not None:
        refuse_existing(output)
    dump = open_dump(file, session.manager, reader=reader, other=train, other_reader=train_reader, redacted=redact)
    summary, comparison = summarise(dump)
    if output is not None:
        keep(dump, comparison, output)

    def show(document: RunSummary) -> None:
        click.echo("\n".join(dump.lines) + "\n")
        show_run(evolve(document, cases=tuple(evolve(case, label=case.case_id) for case in document.cases)))
        show_edges(comparison, dump.table.sample_ids)
        if output is not None:
            click.echo(f"  kept in {output}; `xcfg verify {output}` computes it again")

    emit(session, summary, show)
    raise SystemExit(summary.exit_code)

"""`xcfg compare FILE`: the comparison of a dump that already holds both log probabilities."""

from __future__ import annotations

from pathlib import Path

import click

from xcfg.cli._output import Session, common_options, emit, pass_session
from xcfg.cli._run_table import show_edges, show_run
from xcfg.schema.summary import RunSummary


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--format", "reader", metavar="NAME", help="The dump reader to use instead of the one that recognises FILE."
)
@common_options
@pass_session
def compare(session: Session, file: Path, reader: str | None) -> None:
    """Compare the two log probabilities per token in FILE (canonical JSONL or safetensors)."""
    from xcfg.flow.compare import open_dump, summarise

    dump = open_dump(file, session.manager, reader=reader)
    summary, comparison = summarise(dump)

    def show(document: RunSummary) -> None:
        show_run(document)
        show_edges(comparison, dump.table.sample_ids)

    emit(session, summary, show)
    raise SystemExit(summary.exit_code)

"""`xcfg cube RUN`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xcfg_analysis.options import common_options, emit, run_options


@click.command()
@run_options
@click.option("--where", "conditions", multiple=True, metavar="AXIS=VALUE", help="Keep the rows that asked for this.")
@click.option("--slice", "slice_name", metavar="NAME", help="Keep the rows of a slice that the experiment names.")
@click.option("--pivot", nargs=2, metavar="AXIS AXIS", help="Show one figure over two axes.")
@click.option("--figure", default="rms", show_default=True, metavar="NAME", help="The figure of --pivot.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the rows to a .parquet, .csv or .json file.",
)
@common_options
@click.pass_context
def cube(
    context: click.Context,
    run: Path,
    runtimes: str,
    conditions: tuple[str, ...],
    slice_name: str | None,
    pivot: tuple[str, str] | None,
    figure: str,
    output: Path | None,
) -> None:
    """Show the results of RUN (runs/<experiment>) as a cube: what was asked for, what ran, what came out.

    VALUE is JSON or text. A figure is one of the verdict edge (rms, mean_abs, mismatches), EDGE.FIGURE, status,
    assessment or seconds.score.
    """
    from xcfg_analysis.cube import query, table
    from xcfg_analysis.cube.load import load_cube
    from xcfg_analysis.outputs import refuse_overwriting

    refuse_overwriting(run, {"--output": output}, {})
    session: Any = context.obj
    found = load_cube(run, plugins=session.manager, runtimes=runtimes)
    if slice_name:
        found = query.named_slice(found, slice_name, session.manager.knobs())
    if conditions:
        found = query.where(found, query.parse_where(conditions))
    if output is not None:
        table.write(found, output)
    if pivot is not None:
        shown = query.pivot(found, *pivot, figure)
        emit(context, shown, lambda: table.pivot_text(shown))
    else:
        emit(context, found, lambda: table.text(found))

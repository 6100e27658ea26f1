"""`xcfg matrix MODULE FILE`: run the rows of a debug matrix, or list them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import click

from xcfg.cli._numbers import FiniteRange
from xcfg.cli._output import Session, common_options, emit, note, pass_session, table
from xcfg.cli._signals import end_as_interrupted
from xcfg.errors import UsageError
from xcfg.schema import codec
from xcfg.schema.matrix import MatrixManifest, MatrixReport, MatrixRow


@click.command()
@click.argument("module", metavar="MODULE")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--backend", default="", metavar="ID", help="A backend of the module's operator (default: the reference)."
)
@click.option("--rollout", default="torch", show_default=True, metavar="NAME", help="The runtime of the rollout side.")
@click.option(
    "--training", default="torch", show_default=True, metavar="NAME", help="The runtime of the training side."
)
@click.option("--rollout-devices", default="cpu", metavar="LIST", help="e.g. cpu or cuda:0,cuda:1")
@click.option("--training-devices", default="cpu", metavar="LIST", help="e.g. cpu or cuda:0,cuda:1")
@click.option("--output-root", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option("--timeout-seconds", type=FiniteRange(1), help="Limit per engine build and per score request.")
@click.option("--secondary", "tier", flag_value="secondary", help="Run the secondary probes of each row too.")
@click.option("--all-probes", "tier", flag_value="all", help="Run every probe.")
@click.option("--manifest", is_flag=True, help="Run nothing: print what the matrices are made of.")
@click.option("--rows", type=click.Path(path_type=Path), metavar="MANIFEST", help="Run only what this manifest names.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON document to FILE too.")
@common_options
@pass_session
def matrix(
    session: Session,
    module: str,
    file: Path | None,
    manifest: bool,
    rows: Path | None,
    tier: str | None,
    backend: str,
    output: Path | None,
    **given: object,
) -> None:
    """Run the debug matrix MODULE (or `all`) on the frozen rollout and baseline of the experiment in FILE.

    Gates come first, then controls, then rows that change one factor each. An unmet gate leaves no number.
    """
    from xcfg.flow import matrix as journey

    if manifest:
        listed = journey.manifest(session.manager, module)
        _write(output, listed)
        emit(session, listed, _listing)
        return
    if file is None:
        raise UsageError("a matrix runs on a frozen replay", hint="Name an experiment FILE, or list with --manifest.")
    seconds = given["timeout_seconds"]
    limits = {} if seconds is None else {"build_timeout": seconds, "score_timeout": seconds}
    end_as_interrupted()
    _check(output, Path(str(given["output_root"])))
    report = journey.run(
        session.manager,
        module,
        file,
        tier=tier or "default",
        rows=None if rows is None else journey.read_manifest(rows, session.manager),
        backend=backend,
        options={
            "rollout": given["rollout"],
            "training": given["training"],
            "rollout_devices": _list(given["rollout_devices"]),
            "training_devices": _list(given["training_devices"]),
            "output_root": given["output_root"],
            **limits,
        },
    )
    emit(session, report, _show)
    _write(output, report)
    raise SystemExit(report.exit_code)


def _list(text: object) -> tuple[str, ...]:
    return tuple(part.strip() for part in str(text).split(",") if part.strip())


def _write(output: Path | None, document: object) -> None:
    if output is None:
        return
    with _refused(output):
        output.write_bytes(codec.pretty_json(document))
    note(f"wrote {output}")


def _check(output: Path | None, root: Path) -> None:
    """Raise UsageError where `output` cannot be written, before the work is done; nothing is changed or left there."""
    if output is None:
        return
    with _refused(output):
        folder = output.absolute().parent
        if not folder.exists() and folder in (root.absolute(), *root.absolute().parents):
            return  # the matrix makes it
        try:
            kind = output.stat().st_mode
        except FileNotFoundError:
            target = os.path.realpath(output)  # a link to a file that is not there yet is made a file by writing
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
            os.unlink(target)
            return
        if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # to open a pipe and close it would end what reads it
            os.close(os.open(output, os.O_WRONLY | os.O_CLOEXEC))


@contextlib.contextmanager
def _refused(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{str(output)!r} cannot be written: {error.strerror}",
            hint="Check permissions and the file system of the report (--output).",
        ) from error


def _show(report: MatrixReport) -> str:
    lines = [table(("row", "role", "probe", "edge", "phase", "status", "figures"), [_line(row) for row in report.rows])]
    lines += [f"{row.row} {row.probe} {row.edge}: {row.reason}".replace("  ", " ") for row in report.rows if row.reason]
    lines += [f"{name}: not there: {why}" for name, why in report.missing.items()]
    lines += [f"{name}: {note}" for name, note in report.notes.items()]
    sides = f"rollout {report.runtimes['rollout']}, training {report.runtimes['training']}"
    lines.append(f"\n{report.experiment_id}: {sides}; backend {report.backend}; exit {report.exit_code}")
    return "\n".join(lines)


def _line(row: MatrixRow) -> tuple[str, ...]:
    figures = "  ".join(f"{name} {value:.4g}" for name, value in row.metrics.items())
    shown = figures if row.comparable else "no number"
    return (row.row, row.role, row.probe, row.edge, row.phase, row.status, shown)


def _listing(found: MatrixManifest) -> str:
    lines = []
    for item in found.modules:
        told = item.status if not item.missing else f"{item.status}: {item.missing}"
        lines.append(f"{item.module} ({item.distribution} {item.version}, {told})\n  {item.summary}")
        if item.rows:
            cells = [(row.row, row.role, row.probe, row.tier, row.summary) for row in item.rows]
            text = table(("row", "role", "probe", "runs by", "what it is"), cells)
            lines.append("\n".join(f"  {line}" for line in text.splitlines()))
    return "\n".join(lines)

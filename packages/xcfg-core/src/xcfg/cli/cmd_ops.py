"""`xcfg ops`: operator backends, what they declare, and why one is or is not usable."""

from __future__ import annotations

import click

from xcfg.cli._output import CommandGroup, Session, common_options, emit, fields, pass_session, table
from xcfg.cli.cmd_knobs import domain, spell
from xcfg.errors import UnknownNameError, did_you_mean
from xcfg.flow.injection import injection
from xcfg.operators import (
    OperatorResolutionError,
    OperatorSession,
    ResolutionContext,
    SemanticOperatorCatalog,
)
from xcfg.plugin.manager import Provided
from xcfg.schema._base import Record
from xcfg.schema.operators import (
    OperatorBackendDescriptor,
    OperatorBinding,
    OperatorChoice,
    ResolutionDecision,
)

OPERATORS = "xcfg.operators.v1"
RESOLUTION = "xcfg.operator_resolution.v1"


class OperatorLine(Record):
    """One backend with the plugin, distribution and version that provide it."""

    plugin: str
    distribution: str
    version: str
    operator: OperatorBackendDescriptor


class OperatorsSummary(Record):
    """`xcfg ops list --json` and `xcfg ops show --json`."""

    schema_version: str
    operators: tuple[OperatorLine, ...]


class ResolutionSummary(Record):
    """`xcfg ops resolve --json`. trace holds every decision.

    binding is null when the backend was refused, and when the engine runs its own and is handed nothing.
    """

    schema_version: str
    operation: str
    side: str
    requested: str
    ok: bool
    binding: OperatorBinding | None
    trace: tuple[ResolutionDecision, ...]


@click.group(cls=CommandGroup)
@common_options
def ops() -> None:
    """List operator backends, and explain a resolution."""


@ops.command("list")
@common_options
@pass_session
def list_(session: Session) -> None:
    """List every operator backend of the active plugins."""
    lines = tuple(_line(item) for item in session.manager.operator_backends())
    ordered = tuple(sorted(lines, key=lambda line: (line.operator.operation, line.operator.backend_id)))
    emit(session, OperatorsSummary(schema_version=OPERATORS, operators=ordered), _listing)


@ops.command()
@click.argument("backend_id", metavar="ID")
@common_options
@pass_session
def show(session: Session, backend_id: str) -> None:
    """Show what the backend ID declares; ID is a backend id, an alias, or OPERATION/ID."""
    offered = session.manager.operator_backends()
    lines = tuple(_line(item) for item in offered if backend_id in _names(item.record))
    if not lines:
        names = [item.record.backend_id for item in offered]
        raise UnknownNameError(
            f"no active plugin provides the operator backend {backend_id!r}",
            hint=f"{did_you_mean(backend_id, names)} `xcfg plugins list` shows what is active.".strip(),
        )
    emit(
        session,
        OperatorsSummary(schema_version=OPERATORS, operators=lines),
        lambda summary: "\n\n".join(_detail(line) for line in summary.operators),
    )


@ops.command()
@click.argument("operation")
@click.option("--side", type=click.Choice(["rollout", "training", "reference"]), required=True)
@click.option("--backend", required=True, help="A backend id, an alias, or a policy such as production.")
@click.option("--runtime", default="torch", show_default=True, help="The runtime that would run it.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:0.")
@click.option("--dtype", default="float32", show_default=True, help="The dtype of its input.")
@click.option("--allow-smoke-operators", is_flag=True, help="Allow a smoke backend of the named runtime.")
@common_options
@pass_session
def resolve(
    session: Session,
    operation: str,
    side: str,
    backend: str,
    runtime: str,
    device: str,
    dtype: str,
    allow_smoke_operators: bool,
) -> None:
    """Resolve one backend of OPERATION and print every decision; exit with 2 if it is refused."""
    provided = session.manager.runtime(runtime)
    catalog = SemanticOperatorCatalog.from_provided(session.manager.operator_backends(), runtimes=(runtime,))
    where = ResolutionContext(
        device=device,
        dtype=dtype,
        topology={},
        runtime=runtime,
        strict=True,
        allow_smoke=allow_smoke_operators,
    )
    outside = injection(provided.record, operation, backend)
    if outside is not None and outside.ok and operation not in catalog.operations:
        catalog.get(operation, backend)  # nobody has such an operation: it raises, with the nearest names
    binding: OperatorBinding | None = None
    try:
        binding = OperatorSession(catalog, provided.record.policies).resolve(
            operation, side, OperatorChoice(backend=backend), where
        )
        trace = binding.trace
    except OperatorResolutionError as error:
        if not error.trace:
            raise
        trace = error.trace
    if outside is not None:  # what else holds does not matter: nothing is handed to this engine
        binding, trace = None, (outside,) if outside.ok else (outside, *trace)
    summary = ResolutionSummary(
        schema_version=RESOLUTION,
        operation=operation,
        side=side,
        requested=backend,
        ok=binding is not None or (outside is not None and outside.ok),
        binding=binding,
        trace=trace,
    )
    emit(session, summary, _resolution)
    click.get_current_context().exit(0 if summary.ok else OperatorResolutionError.exit_code)


def _line(item: Provided[OperatorBackendDescriptor]) -> OperatorLine:
    return OperatorLine(plugin=item.plugin, distribution=item.distribution, version=item.version, operator=item.record)


def _names(record: OperatorBackendDescriptor) -> set[str]:
    return {record.backend_id, *record.aliases, f"{record.operation}/{record.backend_id}"}


def _listing(summary: OperatorsSummary) -> str:
    rows = [
        (
            line.operator.operation,
            line.operator.backend_id,
            line.plugin,
            ", ".join(line.operator.targets),
            ", ".join(line.operator.devices),
            ", ".join(mark for mark in _marks(line.operator)),
        )
        for line in summary.operators
    ]
    if not rows:
        return "no active plugin provides an operator backend; `xcfg plugins list` shows what is active"
    return table(("operation", "backend", "plugin", "sides", "devices", "properties"), rows)


def _marks(record: OperatorBackendDescriptor) -> tuple[str, ...]:
    smoke = ("smoke",) if record.smoke_only else ()
    diagnostic = ("diagnostic",) if record.diagnostic_only else ()
    return (*smoke, *diagnostic, *record.properties)


def _detail(line: OperatorLine) -> str:
    record = line.operator
    return fields(
        [
            ("backend", f"{record.operation}/{record.backend_id}"),
            ("summary", record.summary),
            ("provided by", f"{line.plugin} ({line.distribution} {line.version})"),
            ("aliases", ", ".join(record.aliases)),
            ("version", f"{record.version} {record.build_fingerprint}".strip()),
            ("sides", ", ".join(record.targets)),
            ("runtimes", ", ".join(record.runtimes) or "every runtime"),
            ("devices", ", ".join(record.devices)),
            ("architectures", ", ".join(record.architectures)),
            ("dtypes", ", ".join(record.dtypes)),
            ("shapes", record.shapes),
            *((f"topology on {side}", _sizes(sizes)) for side, sizes in record.topologies.items()),
            ("collectives", ", ".join(record.collectives)),
            ("metadata", ", ".join(record.required_metadata)),
            ("properties", ", ".join(_marks(record))),
            ("lifecycle", record.lifecycle.value),
            ("fallback", record.fallback),
            ("observable", "yes" if record.observable else "no"),
            ("factory", record.factory),
            *((f"option {item.name}", f"{domain(item.domain)}; {item.summary}") for item in record.options),
        ]
    )


def _sizes(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} = {spell(size)}" for name, size in sizes.items())


def _resolution(summary: ResolutionSummary) -> str:
    steps = table(
        ("decision", "held", "detail"),
        ((step.check, "yes" if step.ok else "NO", step.detail) for step in summary.trace),
    )
    found = f"{summary.operation} on {summary.side}: {summary.requested}"
    last = f"{found} is refused"
    if summary.ok:
        last = f"{found} is {summary.binding.backend_id if summary.binding else 'what the engine runs by itself'}"
    return f"{steps}\n{last}"

"""`xcfg knobs`: what can be varied, who provides it and how it behaves."""

from __future__ import annotations

import click

from xcfg.cli._output import CommandGroup, Session, common_options, emit, fields, pass_session, table
from xcfg.plugin.manager import Provided
from xcfg.schema import codec
from xcfg.schema._base import Record
from xcfg.schema.knobs import Choice, Domain, FloatRange, IntRange, KnobDefinition

KNOBS = "xcfg.knobs.v1"


class KnobLine(Record):
    """One knob with the plugin, distribution and version that provide it."""

    plugin: str
    distribution: str
    version: str
    knob: KnobDefinition


class KnobsSummary(Record):
    """`xcfg knobs list --json` and `xcfg knobs show --json` (one knob)."""

    schema_version: str
    knobs: tuple[KnobLine, ...]


@click.group(cls=CommandGroup)
@common_options
def knobs() -> None:
    """List what can be varied."""


@knobs.command("list")
@common_options
@pass_session
def list_(session: Session) -> None:
    """List every knob that the active plugins provide."""
    manager = session.manager
    lines = tuple(_line(manager.knob(path)) for path in manager.knobs())
    emit(session, KnobsSummary(schema_version=KNOBS, knobs=lines), _listing)


@knobs.command()
@click.argument("path")
@common_options
@pass_session
def show(session: Session, path: str) -> None:
    """Show the knob PATH: its domain, aliases, lifecycle, alignment and evidence."""
    line = _line(session.manager.knob(path))
    emit(session, KnobsSummary(schema_version=KNOBS, knobs=(line,)), _detail)


def _line(provided: Provided[KnobDefinition]) -> KnobLine:
    return KnobLine(
        plugin=provided.plugin,
        distribution=provided.distribution,
        version=provided.version,
        knob=provided.record,
    )


def _listing(summary: KnobsSummary) -> str:
    rows = (
        (
            line.knob.name,
            line.knob.lifecycle.value,
            line.knob.targets.value,
            line.plugin,
            default(line.knob),
            domain(line.knob.domain),
        )
        for line in summary.knobs
    )
    told = f"{NEEDED}: no default, so an experiment that names the knob gives the value in its baseline (or `fixed`)"
    return f"{table(('knob', 'lifecycle', 'side', 'plugin', 'default', 'values'), rows)}\n\n{told}"


NEEDED = "needs baseline"


def default(knob: KnobDefinition) -> str:
    """Return the default, or that the baseline has to name a value."""
    return NEEDED if knob.default is None else spell(knob.default)


def domain(found: Domain) -> str:
    """Return a domain in words."""
    if isinstance(found, Choice):
        return ", ".join(spell(value) for value in found.values)
    if isinstance(found, IntRange):
        return f"integer from {found.minimum}" + ("" if found.maximum is None else f" to {found.maximum}")
    if isinstance(found, FloatRange):
        return found.describe()
    return f"text matching {found.pattern}"


def spell(value: object) -> str:
    """Return a value as an experiment file has it, without the quotes of a string."""
    return value if isinstance(value, str) else codec.canonical_json(value).decode()


def _detail(summary: KnobsSummary) -> str:
    line = summary.knobs[0]
    knob = line.knob
    return fields(
        [
            ("knob", knob.name),
            ("summary", knob.summary),
            ("provided by", f"{line.plugin} ({line.distribution} {line.version})"),
            ("values", domain(knob.domain)),
            ("aliases", ", ".join(f"{alias} = {spell(value)}" for alias, value in knob.aliases.items())),
            ("default", "none: the baseline names a value" if knob.default is None else spell(knob.default)),
            ("lifecycle", knob.lifecycle.value + (", distributed context" if knob.distributed else "")),
            ("side", knob.targets.value),
            ("source class", knob.source_class.value),
            ("binding tier", knob.tier.value),
            ("critical", "yes" if knob.critical else "no"),
            ("option of", f"{knob.option_of}: of the backend that a side runs" if knob.option_of else ""),
            ("derived", "set through the operator mapping" if knob.derived else ""),
            ("supported", knob.capability),
            ("applied", knob.apply),
            ("read back", knob.provenance),
            *(("constraint", f"{rule.code}: {rule.reason}") for rule in knob.constraints),
            ("align", _align(knob)),
        ]
    )


def _align(knob: KnobDefinition) -> str:
    if knob.align is None:
        return f"not alignable: {knob.not_alignable or 'no map to the other side is declared'}"
    spec = knob.align
    ranks = f"scope {spec.scope}, intrusion {spec.intrusion}, maintenance {spec.maintenance}"
    reference = "" if spec.reference is None else f", reference {spell(spec.reference)}"
    return f"group {spec.group}{reference} ({ranks})"

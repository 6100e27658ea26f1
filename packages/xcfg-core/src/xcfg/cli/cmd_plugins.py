"""`xcfg plugins`: what is installed, in which state, and what is missing."""

from __future__ import annotations

import click

from xcfg.cli._output import CommandGroup, Session, common_options, emit, fields, pass_session, table
from xcfg.errors import PluginError
from xcfg.schema._base import Record
from xcfg.schema.summary import PLUGINS, PluginEntry, PluginsSummary

PLUGIN = "xcfg.plugin.v1"
QUIET = ("active", "blocked")


class PluginDetail(Record):
    """`xcfg plugins show --json`. offers: everything it provides, by plural noun."""

    schema_version: str
    plugin: PluginEntry
    offers: dict[str, tuple[str, ...]]


@click.group(cls=CommandGroup)
@common_options
def plugins() -> None:
    """List plugins and say what is wrong with them."""


@plugins.command("list")
@common_options
@pass_session
def list_(session: Session) -> None:
    """List every installed plugin with its status."""
    emit(session, PluginsSummary(schema_version=PLUGINS, plugins=session.manager.plugins()), _listing)


@plugins.command()
@click.argument("name")
@common_options
@pass_session
def show(session: Session, name: str) -> None:
    """Show everything that the plugin NAME provides."""
    manager = session.manager
    detail = PluginDetail(schema_version=PLUGIN, plugin=manager.plugin(name), offers=manager.offers(name))
    emit(session, detail, _detail)


@plugins.command()
@common_options
@pass_session
def check(session: Session) -> None:
    """Exit with 2 if an installed plugin cannot be used; a blocked one is no fault."""
    entries = session.manager.plugins()
    faulty = [entry for entry in entries if entry.status not in QUIET]
    if faulty:
        reasons = "; ".join(f"{entry.name} is {entry.status}: {entry.reason}" for entry in faulty)
        raise PluginError(
            f"{len(faulty)} of {len(entries)} plugins cannot be used: {reasons}",
            hint="Repair or uninstall them, or leave them out with --no-plugin NAME.",
        )
    emit(
        session,
        PluginsSummary(schema_version=PLUGINS, plugins=entries),
        lambda summary: f"{len(summary.plugins)} plugins, all active or blocked",
    )


def _listing(summary: PluginsSummary) -> str:
    rows = (
        (entry.name, f"{entry.distribution} {entry.version}", entry.status, _provides(entry), entry.reason)
        for entry in summary.plugins
    )
    return table(("plugin", "distribution", "status", "provides", "missing or wrong"), rows)


def _provides(entry: PluginEntry) -> str:
    counted = ((len(names), noun) for noun, names in entry.provides.items() if names)
    return ", ".join(f"{count} {noun if count > 1 else noun[:-1]}" for count, noun in counted) or "-"


def _detail(detail: PluginDetail) -> str:
    entry = detail.plugin
    head = [
        ("plugin", entry.name),
        ("distribution", f"{entry.distribution} {entry.version}"),
        ("status", entry.status),
        *(("missing or wrong", reason) for reason in entry.reason.split("; ")),
    ]
    return fields([*head, *((noun, ", ".join(names)) for noun, names in detail.offers.items())])

"""What a plugin may offer: one Kind per registration hook, and the check of what such a hook returned.

A record that passes is decoded once more from its plain form, so that later stages can rely on the declared
field types (a list where a tuple belongs becomes a tuple, a string where an enum belongs becomes the member).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xcfg.errors import PluginError, XcfgError
from xcfg.plugin.provide import (
    CommandProvider,
    DebugMatrix,
    DumpReaderDescriptor,
    Profile,
    RendererDescriptor,
    SignatureDescriptor,
)
from xcfg.schema import codec
from xcfg.schema._base import Record
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg.schema.runtime import CheckpointDescriptor, RuntimeDescriptor

REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
"""`module:attr`, both dotted names."""
STATUSES = ("available", "planned")


@dataclass(frozen=True)
class Kind:
    """One registration hook: what it is called, which record it returns, what identifies a record.

    ids: the first one is the name that listings show, the others (aliases) are taken as well.
    references: fields that hold `module:attr`; a planned record may leave them empty, and those in `may_lack`
    may always be empty (a runtime that is launched by its own command has no adapter class).
    """

    hook: str
    noun: str
    plural: str
    record: type[Record]
    ids: Callable[[Any], tuple[str, ...]]
    references: tuple[str, ...] = ()
    may_lack: tuple[str, ...] = ()


def _named(record: Any) -> tuple[str, ...]:
    return (record.name,)


def _operator_ids(record: OperatorBackendDescriptor) -> tuple[str, ...]:
    return tuple(f"{record.operation}/{name}" for name in (record.backend_id, *record.aliases))


KNOBS = Kind("xcfg_knobs", "knob", "knobs", KnobDefinition, _named)
OPERATORS = Kind(
    "xcfg_operator_backends",
    "operator backend",
    "operators",
    OperatorBackendDescriptor,
    _operator_ids,
    ("factory",),
)
RUNTIMES = Kind(
    "xcfg_runtimes",
    "runtime",
    "runtimes",
    RuntimeDescriptor,
    _named,
    ("adapter", "placement", "arguments"),
    ("adapter", "arguments"),
)
CHECKPOINTS = Kind("xcfg_checkpoints", "checkpoint", "checkpoints", CheckpointDescriptor, _named, ("factory",))
MATRICES = Kind(
    "xcfg_debug_matrices",
    "debug matrix",
    "debug_matrices",
    DebugMatrix,
    lambda item: (item.module,),
    ("factory",),
)
RENDERERS = Kind("xcfg_renderers", "renderer", "renderers", RendererDescriptor, _named, ("factory",))
READERS = Kind("xcfg_dump_readers", "dump reader", "dump_readers", DumpReaderDescriptor, _named, ("factory",))
SIGNATURES = Kind("xcfg_signatures", "signature", "signatures", SignatureDescriptor, _named, ("factory",))
PROFILES = Kind("xcfg_profiles", "profile", "profiles", Profile, _named, ("factory",), ("factory",))
COMMANDS = Kind("xcfg_commands", "command", "commands", CommandProvider, _named, ("factory",))

KINDS = (KNOBS, OPERATORS, RUNTIMES, CHECKPOINTS, MATRICES, RENDERERS, READERS, SIGNATURES, PROFILES, COMMANDS)
"""In the order of spec.py, which is the order in which the hooks of one plugin are called."""


def is_planned(record: Record) -> bool:
    """Whether the record only announces something: it is listed and never used."""
    return getattr(record, "status", "available") != "available"


def check_records(kind: Kind, returned: object) -> tuple[Record, ...]:
    """Return what hook `kind.hook` returned as checked records; PluginError says what is wrong with it."""
    if not isinstance(returned, (tuple, list)):
        raise PluginError(f"{kind.hook} returned {type(returned).__name__}, not a tuple of {kind.record.__name__}")
    records = tuple(_check_record(kind, index, item) for index, item in enumerate(returned))
    seen: set[str] = set()
    for record in records:
        for name in dict.fromkeys(kind.ids(record)):
            if name in seen:
                raise PluginError(f"{kind.hook} offers the {kind.noun} {name!r} twice")
            seen.add(name)
    return records


def _check_record(kind: Kind, index: int, item: object) -> Record:
    where = f"{kind.hook}[{index}]"
    if not isinstance(item, kind.record):
        raise PluginError(f"{where} is {type(item).__name__}, not {kind.record.__name__}")
    try:
        record = codec.convert(codec.plain(item), kind.record, source=where)
    except (XcfgError, TypeError, ValueError, OverflowError) as error:
        message = error.message if isinstance(error, XcfgError) else f"{where}: {error}"
        raise PluginError(message) from None
    for name in kind.ids(record):
        if not name or any(char.isspace() or char == "@" for char in name):
            raise PluginError(f"{where}: {name!r} is no usable name; it may hold no space and no @")
    status = getattr(record, "status", "available")
    if status not in STATUSES:
        raise PluginError(f"{where}: the status {status!r} is none of {', '.join(STATUSES)}")
    for field in kind.references:
        value = getattr(record, field)
        absent = not value and (is_planned(record) or field in kind.may_lack)
        if not absent and not REFERENCE.fullmatch(value):
            raise PluginError(f"{where}: {field} is {value!r}, not 'module:attr'")
    return record

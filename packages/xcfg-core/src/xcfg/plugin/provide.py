"""Records that hooks return and that no stage owns; the others live in xcfg.schema (knobs, operators, runtime).

A record whose `status` is `planned` announces something that this version does not have, and `missing` says
what that is. It is listed, never used, its factory may be empty, and naming it is an error that repeats
`missing`.
"""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record, Value
from xcfg.schema.matrix import MatrixRowDefinition


class DebugMatrix(Record):
    """A debug matrix of one module. factory: xcfg.plugin.protocols.MatrixRunner.

    rows: names. table: what each of them is; the manifest is generated from it. note: what to know before its rows are
    read.
    """

    module: str
    summary: str
    factory: str
    rows: tuple[str, ...] = ()
    table: tuple[MatrixRowDefinition, ...] = ()
    note: str = ""
    status: str = "available"
    missing: str = ""


class RendererDescriptor(Record):
    """Turns a stored run into a file. factory(run: RunSummary, ...) -> bytes; suffixes it answers to."""

    name: str
    summary: str
    factory: str
    suffixes: tuple[str, ...] = ()
    media_type: str = ""
    status: str = "available"
    missing: str = ""


class DumpReaderDescriptor(Record):
    """Reads a foreign dump. factory implements xcfg.plugin.protocols.DumpReader."""

    name: str
    summary: str
    factory: str
    suffixes: tuple[str, ...] = ()
    framework: str = ""
    status: str = "available"
    missing: str = ""


class SignatureDescriptor(Record):
    """Recognises one kind of fault in a table of both log probabilities. factory: xcfg.plugin.signature.Signature.

    needs: columns without which it answers `insufficient data`; optional: columns that sharpen it.
    closed_form: what the fault does to d = training - rollout, in words that fit one line.
    tier: 0 exact, 1 a form of a column, 2 a named group of tokens, 3 generic; of forms that explain about the same
    the lower tier is named.
    """

    name: str
    summary: str
    factory: str
    needs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    closed_form: str = ""
    tier: int = 3
    status: str = "available"
    missing: str = ""


class Profile(Record):
    """A named preset over the planner. factory: xcfg.plugin.protocols.ProfileExpander; without one it is only listed.

    source_classes: the classes whose differences between the sides stay; what the fields mean is the factory's.
    """

    name: str
    summary: str
    strategy: str = "one_at_a_time"
    paths: tuple[str, ...] = ()
    source_classes: tuple[str, ...] = ()
    overrides: dict[str, Value] = {}
    extra: dict[str, Any] = {}
    factory: str = ""


class CommandProvider(Record):
    """A click command, imported only when it is called; it ends with a code through `ctx.exit(code)`."""

    name: str
    summary: str
    factory: str
    status: str = "available"
    missing: str = ""

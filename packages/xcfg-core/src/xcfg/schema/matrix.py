"""Debug matrices: what a package offers to run, and what came out, row by row."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record

MATRIX = "xcfg.matrix.v1"
MANIFEST = "xcfg.matrix_manifest.v1"
ROLES = ("baseline", "gate", "control", "row", "probe")


class MatrixRowDefinition(Record):
    """One row that a matrix can run, on every edge.

    role: baseline, gate (an unmet one leaves no number), control (bitwise zero on the reference), row, probe.
    factor: the one thing that differs from the row's own baseline. tier: `default`, `secondary` or `all`, the smallest
    selection that runs it.
    """

    row: str
    role: str
    summary: str
    probe: str = ""
    factor: str = ""
    baseline: str = ""
    tier: str = "default"


class MatrixRow(Record):
    """What came of one row on one edge.

    status: of the case statuses. comparable: false where a gate or a control forbids a number; `metrics` is then empty.
    phase: whose own baseline the row is measured against; empty where it concerns both ends of the edge. program: same
    inputs and constants, intermediate precision and final write, reduction grouping and order, hand-offs.
    """

    module: str
    row: str
    role: str
    probe: str
    edge: str
    status: str
    comparable: bool
    metrics: dict[str, float]
    phase: str = ""
    reason: str = ""
    program: dict[str, Any] = {}


class MatrixReport(Record):
    """`xcfg matrix MODULE FILE --json`.

    missing: module -> why this installation cannot run it. notes: module -> what to know before its rows are read.
    """

    schema_version: str
    device: str
    rows: tuple[MatrixRow, ...]
    exit_code: int
    experiment_id: str = ""
    runtimes: dict[str, str] = {}
    backend: str = ""
    missing: dict[str, str] = {}
    notes: dict[str, str] = {}


class ManifestModule(Record):
    """One matrix as it is offered. status: available or planned; missing: what a planned one lacks."""

    module: str
    summary: str
    status: str
    distribution: str
    version: str
    missing: str = ""
    rows: tuple[MatrixRowDefinition, ...] = ()


class MatrixManifest(Record):
    """`xcfg matrix MODULE --manifest`: reporting metadata, generated from the rows that are installed."""

    schema_version: str
    modules: tuple[ManifestModule, ...]

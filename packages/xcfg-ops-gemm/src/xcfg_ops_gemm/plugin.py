"""The plugin `ops-gemm`: announces a debug matrix; this version has no operator backend yet."""

from __future__ import annotations

from xcfg.plugin import DebugMatrix, hookimpl

MATRIX = DebugMatrix(
    module="ffn",
    summary="One-factor rows over the feed-forward and GEMM operators, gates and controls first.",
    factory="",
    rows=("FC0", "F0", "F1", "F2", "F3", "F4"),
    status="planned",
    missing="the GEMM operators, their reference and the probes are not part of this version",
)


@hookimpl
def xcfg_debug_matrices() -> tuple[DebugMatrix, ...]:
    """Return the debug matrix of this package, which is listed and refused when named."""
    return (MATRIX,)

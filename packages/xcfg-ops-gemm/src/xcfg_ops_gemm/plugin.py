"""The plugin `ops-gemm`: reference operators of the feed-forward layer, and a debug matrix that is announced."""

from __future__ import annotations

from xcfg.plugin import DebugMatrix, hookimpl
from xcfg.schema.operators import OperatorBackendDescriptor

from xcfg_ops_gemm.backends import BACKENDS

MATRIX = DebugMatrix(
    module="ffn",
    summary="One-factor rows over the feed-forward and GEMM operators, gates and controls first.",
    factory="",
    rows=("FC0", "F0", "F1", "F2", "F3", "F4"),
    status="planned",
    missing="the deterministic GEMM backends and the probes are not part of this version",
)


@hookimpl
def xcfg_operator_backends() -> tuple[OperatorBackendDescriptor, ...]:
    """Return the backends of this package."""
    return BACKENDS


@hookimpl
def xcfg_debug_matrices() -> tuple[DebugMatrix, ...]:
    """Return the debug matrix of this package, which is listed and refused when named."""
    return (MATRIX,)

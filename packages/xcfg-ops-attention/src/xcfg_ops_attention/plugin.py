"""The plugin `ops-attention`: reference operators of the attention layer, and a debug matrix that is announced."""

from __future__ import annotations

from xcfg.plugin import DebugMatrix, hookimpl
from xcfg.schema.operators import OperatorBackendDescriptor

from xcfg_ops_attention.backends import BACKENDS

MATRIX = DebugMatrix(
    module="attention",
    summary="One-factor rows over the attention operators, gates and controls first.",
    factory="",
    rows=("C0", "C1", "C2", "A0", "A1", "A2", "A3", "A4", "A5", "A6", "A7"),
    status="planned",
    missing="the paged and chunked forms of the reference and the probes are not part of this version",
)


@hookimpl
def xcfg_operator_backends() -> tuple[OperatorBackendDescriptor, ...]:
    """Return the backends of this package."""
    return BACKENDS


@hookimpl
def xcfg_debug_matrices() -> tuple[DebugMatrix, ...]:
    """Return the debug matrix of this package, which is listed and refused when named."""
    return (MATRIX,)

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.operators import OperatorBackendDescriptor


@hookimpl
def xcfg_operator_backends():
    return (
        OperatorBackendDescriptor(
            operation="kit_operation",
            backend_id="twin.right",
            summary="One of two.",
            factory="kit_right:build",
            aliases=("twin.left",),
        ),
    )

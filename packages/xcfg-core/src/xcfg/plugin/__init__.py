"""How the outside gets in: the hook marker, the records a plugin returns, the protocols its code implements.

The smallest plugin is one module and one entry point:

    # pyproject.toml
    [project.entry-points.xcfg]
    my-kernel = "my_kernel.plugin"

    # my_kernel/plugin.py
    from xcfg.plugin import hookimpl
    from xcfg.schema.operators import OperatorBackendDescriptor

    @hookimpl
    def xcfg_operator_backends():
        return (OperatorBackendDescriptor(operation="selected_logprob", backend_id="my-kernel", ...),)

Records carry `factory="module:attr"` strings, so that listing and planning import nothing heavy.
"""

from __future__ import annotations

from xcfg.plugin.markers import API_VERSION, PROJECT, hookimpl
from xcfg.plugin.provide import (
    CommandProvider,
    DebugMatrix,
    DumpReaderDescriptor,
    Profile,
    RendererDescriptor,
    SignatureDescriptor,
)

__all__ = [
    "API_VERSION",
    "PROJECT",
    "CommandProvider",
    "DebugMatrix",
    "DumpReaderDescriptor",
    "Profile",
    "RendererDescriptor",
    "SignatureDescriptor",
    "hookimpl",
]

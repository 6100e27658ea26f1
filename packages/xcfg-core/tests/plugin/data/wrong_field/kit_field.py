from __future__ import annotations

from xcfg.plugin import RendererDescriptor, hookimpl


@hookimpl
def xcfg_renderers():
    return (RendererDescriptor(name="kit-field", summary=3, factory="kit_field:render"),)

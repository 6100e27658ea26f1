from __future__ import annotations

from xcfg.plugin import RendererDescriptor, hookimpl


@hookimpl
def xcfg_renderers():
    return (RendererDescriptor(name="kit-factory", summary="A renderer.", factory="kit_factory.render"),)

from __future__ import annotations

from xcfg.plugin import hookimpl


@hookimpl
def xcfg_knobs():
    yield from ()

from __future__ import annotations

from xcfg.plugin import hookimpl


@hookimpl(optionalhook=True)
def xcfg_launchers():
    return ()

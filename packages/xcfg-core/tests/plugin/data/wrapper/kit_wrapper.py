from __future__ import annotations

from xcfg.plugin import hookimpl


@hookimpl(wrapper=True)
def xcfg_knobs():
    result = yield
    return result

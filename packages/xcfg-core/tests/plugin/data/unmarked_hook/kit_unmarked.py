from __future__ import annotations


def xcfg_knobs():
    return ()

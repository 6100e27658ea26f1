from __future__ import annotations

import sys

from xcfg.plugin import hookimpl


@hookimpl
def xcfg_before_case(case):
    print("noise of an observer")
    sys.exit(0)


@hookimpl
def xcfg_after_case(case):
    raise RuntimeError(f"cannot log {case}")

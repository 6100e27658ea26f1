"""Run an experiment and kill this process with SIGKILL at write boundary STOP. Prints the boundaries as JSON.

usage: run_until.py EXPERIMENT ROOT STOP      STOP -1: to the end
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from xcfg.flow.options import RunOptions
from xcfg.flow.run import run
from xcfg.plugin.manager import PluginManager

seen: list[str] = []
stop = int(sys.argv[3])


def boundary(name: str) -> None:
    if len(seen) == stop:
        os.kill(os.getpid(), signal.SIGKILL)
    seen.append(name)


summary = run(Path(sys.argv[1]), PluginManager.load(), RunOptions(output_root=Path(sys.argv[2]), on_boundary=boundary))
print(json.dumps({"boundaries": seen, "exit_code": summary.exit_code}))

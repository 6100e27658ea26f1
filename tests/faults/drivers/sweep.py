"""Kill the S0 run at every write boundary, look at what is left, run again. Prints one JSON object.

usage: sweep.py EXPERIMENT FOLDER PART PARTS      PART of PARTS: boundaries PART, PART + PARTS, ...

Each run is a process of its own, forked from this one, with workers of its own; only the fork server that has
imported torch is kept from run to run, since starting it takes longer than all the rest.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xcfg
from xcfg.errors import XcfgError
from xcfg.flow.options import RunOptions
from xcfg.flow.run import run
from xcfg.plugin.manager import PluginManager
from xcfg.running import forkserver

experiment, folder = Path(sys.argv[1]), Path(sys.argv[2])
part, parts = int(sys.argv[3]), int(sys.argv[4])
manager = PluginManager.load()
servers: dict[Any, Any] = {}
make_starter = forkserver.ForkStarter.__init__


def keep_servers(self: Any, where: Path) -> None:
    make_starter(self, folder / "servers")
    self._servers = servers


# A worker is tied to the process that asked for it, not to the one that started the server.
forkserver._PER_PROCESS = (*forkserver._PER_PROCESS, "XCFG_SUPERVISOR")  # type: ignore[assignment]
forkserver.ForkStarter.__init__ = keep_servers  # type: ignore[method-assign]
forkserver.ForkStarter.close = lambda self: None  # type: ignore[method-assign]


def s0(root: Path, boundary: Callable[[str], None] | None = None) -> Any:
    return run(
        experiment,
        manager,
        RunOptions(rollout="cpu-smoke", training="cpu-smoke", output_root=root, allow_smoke=True, on_boundary=boundary),
    )


def workers() -> list[int]:
    """Return the workers that live: children of the server."""
    found = []
    for server in servers.values():
        children = Path(f"/proc/{server.popen.pid}/task/{server.popen.pid}/children").read_text().split()
        for child in children:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            found += [int(child)] if state not in "ZX" else []
    return found


def killed_at(root: Path, stop: int) -> bool:
    """Run in a forked process until boundary `stop`; return whether SIGKILL ended it."""
    child = os.fork()
    if child == 0:
        left = stop

        def boundary(_: str) -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        try:
            s0(root, boundary)
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def faults(root: Path) -> list[str]:
    try:
        checks = xcfg.verify(root).attempts
        return [f"{check.path}: {check.reasons}" for check in checks if not check.ok and not check.unfinished]
    except XcfgError as error:
        return [] if "no attempt and no side score" in str(error) or "does not exist" in str(error) else [str(error)]


def published(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and ".tmp-" not in str(path))
    return {str(path): path.read_bytes() for path in files}


def look(root: Path, stop: int, statuses: list[str]) -> list[str]:
    """Kill at `stop`, check, run to the end, check."""
    wrong = [] if killed_at(root, stop) else ["was not killed"]
    wrong += faults(root)
    deadline = time.monotonic() + 10
    while workers() and time.monotonic() < deadline:
        time.sleep(0.01)
    wrong += [f"worker {pid} outlived its supervisor" for pid in workers()]
    before = published(root)
    keys = {path.name for path in root.glob("*/scores/*") if (path / "COMPLETE").exists()}
    summary = s0(root)
    after = published(root)
    wrong += [f"changed: {path}" for path, data in before.items() if after.get(path) != data]
    wrong += [
        f"scored again: {path.name}" for path in root.glob("*/scores/*.r*") if path.name.partition(".")[0] in keys
    ]
    if [case.status for case in summary.cases] != statuses:
        wrong.append(f"the second run ended {[case.status for case in summary.cases]}")
    return [f"boundary {stop}: {text}" for text in wrong + faults(root)]


def main() -> None:
    folder.mkdir()
    names: list[str] = []
    statuses = [case.status for case in s0(folder / "count", names.append).cases]
    wrong: list[str] = []
    started = time.monotonic()
    for stop in range(part, len(names), parts):
        root = folder / f"at-{stop}"
        wrong += look(root, stop, statuses)
        shutil.rmtree(root)
    for server in servers.values():
        server.close()
    seconds = round(time.monotonic() - started, 1)
    print(json.dumps({"boundaries": names, "statuses": statuses, "wrong": wrong, "seconds": seconds}))


main()

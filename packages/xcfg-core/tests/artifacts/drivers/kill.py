"""Kill a real process at every write boundary and look at what it left. Prints one JSON object.

usage: kill.py FOLDER. The driver forks one child per boundary; it has no threads and imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import sample
from xcfg.artifacts import atomic
from xcfg.artifacts.store import Store
from xcfg.artifacts.verify import check_seals
from xcfg.errors import NothingSelectedError

atomic.CHUNK = 512  # so that a payload is written in several steps


def killed_at(root: Path, stop: int) -> bool:
    """Run in a forked process that kills itself at boundary `stop`; return whether SIGKILL ended it."""
    child = os.fork()
    if child == 0:
        try:
            run_until(root, stop)
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def run_until(root: Path, stop: int) -> None:
    seen = 0

    def boundary(name: str) -> None:
        nonlocal seen
        if seen == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    sample.whole_run(Store(root, "demo", on_boundary=boundary))


def published(root: Path) -> dict[str, str]:
    files = (path for path in root.rglob("*") if path.is_file() and ".tmp-" not in str(path.relative_to(root)))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def faults(root: Path) -> list[str]:
    try:
        checks = check_seals(root)
    except NothingSelectedError:
        return []
    return [f"{check.path}: {check.reasons}" for check in checks if not check.ok and not check.unfinished]


def look(root: Path, stop: int) -> list[str]:
    """Kill at boundary `stop`, check what is there, run again to the end, check again."""
    root.mkdir(parents=True)
    wrong = [] if killed_at(root, stop) else ["was not killed"]
    wrong += faults(root)
    before = published(root)
    store = Store(root, "demo")
    sample.whole_run(store)
    after = published(root)
    wrong += [f"changed: {path}" for path, digest in before.items() if after.get(path) != digest]
    if not sample.is_whole(store):
        wrong.append("the second run did not complete")
    return [f"boundary {stop}: {text}" for text in wrong + faults(root)]


def main(folder: Path) -> None:
    names: list[str] = []
    (folder / "count").mkdir(parents=True)
    sample.whole_run(Store(folder / "count", "demo", on_boundary=names.append))
    wrong: list[str] = []
    for stop in range(len(names)):
        root = folder / f"at-{stop}"
        wrong += look(root, stop)
        shutil.rmtree(root)
    print(json.dumps({"boundaries": names, "wrong": wrong}))


main(Path(sys.argv[1]))

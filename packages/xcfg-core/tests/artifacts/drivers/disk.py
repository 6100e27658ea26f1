"""Fill a small disk to every level and run into its end. Prints one JSON object.

usage: disk.py FOLDER SIZE      FOLDER is a mounted tmpfs of SIZE bytes
       disk.py FOLDER 0         no mount: a limit on the size of each file stands for the full disk
"""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import signal
import sys
from pathlib import Path

import sample
from xcfg.artifacts.store import Store
from xcfg.artifacts.verify import check_seals
from xcfg.errors import ExecutionError, NothingSelectedError

BALLAST = "ballast"


def squeeze(folder: Path, size: int, free: int) -> None:
    if size:
        (folder / BALLAST).write_bytes(b"\0" * max(size - free, 0))
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (free, resource.RLIM_INFINITY))


def relax(folder: Path, size: int) -> None:
    (folder / BALLAST).unlink(missing_ok=True)
    if not size:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def look(folder: Path, size: int, free: int) -> tuple[str, list[str]]:
    root = folder / "runs"
    wrong, message = [], ""
    squeeze(folder, size, free)
    try:
        sample.whole_run(Store(root, "demo"))
    except ExecutionError as error:
        message = str(error)
    for again in range(2):
        with contextlib.suppress(NothingSelectedError):
            wrong += (
                [
                    f"{check.path}: {check.reasons}"
                    for check in check_seals(root)
                    if not check.ok and not check.unfinished
                ]
                if root.exists()
                else []
            )
        if again == 0:
            wrong += [f"left {path}" for path in root.rglob(".tmp-*")]
            relax(folder, size)
            sample.whole_run(Store(root, "demo"))
    if not sample.is_whole(Store(root, "demo")):
        wrong.append("the second run did not complete")
    shutil.rmtree(root)
    return message, [f"with {free} bytes: {text}" for text in wrong]


def main(folder: Path, size: int) -> None:
    levels = range(0, min(size, 160 * 1024), 4096) if size else range(0, 2000, 100)
    outcomes = [look(folder, size, free) for free in levels]
    messages = [message for message, _ in outcomes]
    print(json.dumps({"messages": messages, "wrong": [text for _, wrong in outcomes for text in wrong]}))


main(Path(sys.argv[1]), int(sys.argv[2]))

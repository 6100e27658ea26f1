"""Tie a process to its supervisor: what the supervisor passes on, and how a worker starts its watchdog."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from xcfg.running import guard

SUPERVISOR = "XCFG_SUPERVISOR"
GUARD_FILE = str(Path(guard.__file__))


def _host_key() -> str:
    """Return what tells one process-id space (boot, namespace) from another; empty where unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def supervisor_mark() -> str:
    """Return the value of XCFG_SUPERVISOR for children of this process: `pid|start|host key`."""
    return f"{os.getpid()}|{guard.start_time(os.getpid())}|{_host_key()}"


def _supervisor() -> tuple[int, str]:
    """Return the supervisor's (pid, start); (0, "0") when there is none in this process-id space."""
    pid, _, rest = os.environ.get(SUPERVISOR, "").partition("|")
    start, _, host = rest.partition("|")
    if not pid.isdigit() or host != _host_key():
        return 0, "0"
    return int(pid), start or "0"


def guarded(command: tuple[str, ...]) -> list[str]:
    """Return `command` wrapped so that it dies with the supervisor, this process."""
    start = guard.start_time(os.getpid())
    return [sys.executable, "-I", "-S", GUARD_FILE, "run", str(os.getpid()), start, "--", *command]


def tie_to_supervisor() -> subprocess.Popen[bytes] | None:
    """Start the watchdog of this process, and a thread that stands in for it; return the watchdog.

    The thread needs the interpreter lock and the watchdog does not; the watchdog can be killed and the thread
    cannot. Where there is no supervisor (a test, a person) nothing is started.
    """
    pid, start = _supervisor()
    if pid == 0:
        return None
    threading.Thread(target=_stand_in, args=(pid, start), daemon=True, name="xcfg-guard").start()
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            [sys.executable, "-I", "-S", GUARD_FILE, "watch", str(os.getpid()), str(pid), start],
            stdin=subprocess.DEVNULL,
        )
    return None


def _stand_in(supervisor: int, start: str) -> None:
    while not guard.is_gone(supervisor, start):
        time.sleep(1.0)
    if os.getpgid(0) == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)

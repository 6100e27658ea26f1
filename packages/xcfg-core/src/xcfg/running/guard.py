"""A watchdog beside one worker process: when its supervisor is gone, so is everything that it started.

Standard library only and run by path (`python -I -S guard.py MODE ...`), so that it starts in milliseconds,
needs no package and keeps working while the worker sits in native code that holds the interpreter lock. A
parent-death signal would not do: the kernel sends it when the *thread* that started the worker ends, and it
reaches the worker alone, not the processes that the worker started.

    guard.py watch WORKER SUPERVISOR START    beside xcfg's own worker; WORKER is its parent
    guard.py run SUPERVISOR START -- COMMAND  around a foreign command (torchrun); relays its exit status

SUPERVISOR 0 means that there is none to watch. START tells a process from a later one with the same id.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

EXCHANGE = "XCFG_EXCHANGE"
POLL_SECONDS = 0.25


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on (field 3), or an empty list."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, or `0` where the system does not say."""
    fields = stat_fields(pid)
    return fields[19] if len(fields) > 19 else "0"


def is_gone(pid: int, start: str) -> bool:
    """Say whether process `pid`, started at `start`, has ended; a zombie has."""
    if pid <= 0:
        return False
    fields = stat_fields(pid)
    if fields:
        return fields[0] in "ZX" or (start != "0" and fields[19] != start)
    if os.path.exists("/proc/self/stat"):
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def marked(exchange: str) -> list[int]:
    """Return the processes whose environment names this exchange folder, without this one (Linux only)."""
    mark = f"{EXCHANGE}={exchange}".encode(errors="surrogateescape")
    found = []
    try:
        names = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for pid in names:
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                variables = stream.read().split(b"\0")
        except OSError:
            continue
        if pid != os.getpid() and mark in variables:
            found.append(pid)
    return found


def kill_marked(exchange: str) -> None:
    """Kill what carries this exchange folder in its environment, also outside the process group."""
    for _ in range(3):
        pids = marked(exchange)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(OSError):
        if os.getpgid(0) == leader:
            os.killpg(leader, signal.SIGKILL)


def _wait(pids: list[int]) -> None:
    """Sleep until one of `pids` may have ended; at most POLL_SECONDS where the kernel cannot tell."""
    poller, handles = select.poll(), []
    try:
        for pid in pids:
            handles.append(os.pidfd_open(pid))
            poller.register(handles[-1], select.POLLIN)
        poller.poll(4000 * POLL_SECONDS)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):
        time.sleep(POLL_SECONDS)
    finally:
        for handle in handles:
            os.close(handle)


def watch(worker: int, supervisor: int, start: str) -> int:
    """Wait for the end of the worker (this process's parent) or of the supervisor, then clean up after it."""
    while True:
        if is_gone(supervisor, start):
            kill_marked(os.environ.get(EXCHANGE, ""))
            _kill_group(worker)
            return 0
        if os.getppid() != worker:
            _kill_group(worker)
            return 0
        _wait([worker, supervisor] if supervisor > 0 else [worker])


def run(command: list[str], supervisor: int, start: str) -> int:
    """Run `command`, relay its exit status, and kill it and its group when the supervisor is gone."""
    try:
        child = subprocess.Popen(command)
    except OSError as error:
        print(f"cannot run {command[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    while child.poll() is None:
        if is_gone(supervisor, start):
            kill_marked(os.environ.get(EXCHANGE, ""))
            _kill_group(os.getpid())
            return 1
        _wait([child.pid, supervisor] if supervisor > 0 else [child.pid])
    if child.returncode < 0:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-child.returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -child.returncode)
    return child.returncode


def main(arguments: list[str]) -> int:
    """Run one of the two modes."""
    if arguments[0] == "watch":
        return watch(int(arguments[1]), int(arguments[2]), arguments[3])
    return run(arguments[arguments.index("--") + 1 :], int(arguments[1]), arguments[2])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

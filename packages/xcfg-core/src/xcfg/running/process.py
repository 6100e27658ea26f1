"""One operating-system process of a worker: started in a session of its own, ended with all below it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from xcfg.errors import LaunchError
from xcfg.running.guard import EXCHANGE, kill_marked
from xcfg.running.guard_link import SUPERVISOR, guarded, supervisor_mark
from xcfg.schema.runtime import Placement

SERVE = (sys.executable, "-P", "-u", "-m", "xcfg.running.serve")
_LAUNCHER_VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


class Process(Protocol):
    """What the supervisor needs of a process, however it was started. It leads a group of its own."""

    rank: int
    log: Path

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group and session."""
        ...

    def ended(self) -> int | None:
        """Return the exit code, -N when signal N ended it, None while it lives. Never reaps."""
        ...

    def reap(self) -> None:
        """Let go of the process id; called once the process has ended."""
        ...


@dataclass
class SpawnedProcess:
    """A process that this one started with exec."""

    rank: int
    log: Path
    popen: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group and session."""
        return self.popen.pid

    def ended(self) -> int | None:
        """Return the exit code without reaping, so that the group id stays taken."""
        if self.popen.returncode is not None or not hasattr(os, "waitid"):
            return self.popen.poll()
        try:
            state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return self.popen.poll()
        return exit_code_of(state)

    def reap(self) -> None:
        """Collect the exit status."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(5.0)


def exit_code_of(state: os.waitid_result | None) -> int | None:
    """Return an exit code, -N for a signal, or None for a process that lives."""
    if state is None:
        return None
    return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status


def child_environment(placement: Placement, exchange: Path, rank: int, rendezvous: str) -> dict[str, str]:
    """Return the environment of one process: inherited, less xcfg's and launchers' variables, plus its own.

    RANK and WORLD_SIZE count the processes that xcfg starts; a foreign command that makes its own ranks gets
    none.
    """
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("XCFG_", "TORCHELASTIC_")) and key not in _LAUNCHER_VARIABLES
    }
    env.update(placement.env)
    env.update({EXCHANGE: str(exchange), SUPERVISOR: supervisor_mark(), "XCFG_RENDEZVOUS": rendezvous})
    if not placement.command or placement.processes == placement.world_size:
        env.update({"RANK": str(rank), "WORLD_SIZE": str(placement.processes), "LOCAL_RANK": str(rank)})
    return env


def spawn(placement: Placement, exchange: Path, rank: int, rendezvous: str) -> Process:
    """Start one process of a worker; its output goes to `worker-<rank>.log` in the exchange folder."""
    env = child_environment(placement, exchange, rank, rendezvous)
    command = list(SERVE)
    if placement.command:
        program = placement.command[0]
        if shutil.which(program, path=env.get("PATH")) is None:
            raise LaunchError(
                f"the command {program!r} is not there",
                hint="The first word of `command` must be a program on PATH, or a path to one.",
            )
        command = guarded(placement.command)
    log = exchange / f"worker-{rank}.log"
    with log.open("ab") as stream:
        popen = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
    return SpawnedProcess(rank, log, popen)


def signal_group(process: Process, number: int) -> None:
    """Send a signal to the group that `process` leads; nothing happens when the group is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def end_groups(processes: Iterable[Process], exchange: Path, *, grace: float) -> None:
    """End whole process groups: SIGTERM, at most `grace` seconds, SIGKILL; then what left its group.

    A second Ctrl-C cuts the grace short and never the killing.
    """
    living = list(processes)
    for process in living:
        signal_group(process, signal.SIGTERM)
    with contextlib.suppress(KeyboardInterrupt):
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and any(process.ended() is None for process in living):
            time.sleep(0.01)
    for process in living:
        signal_group(process, signal.SIGKILL)
    with contextlib.suppress(KeyboardInterrupt):
        kill_marked(str(exchange))
    for process in living:
        process.reap()


def ask_for_stacks(process: Process) -> None:
    """Make xcfg's own worker write the stacks of all its threads into its log (faulthandler on SIGUSR2)."""
    if process.ended() is None:
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGUSR2)


def describe_exit(code: int) -> str:
    """Return `ended with exit code 3` or `was ended by SIGKILL`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    more = " (often the kernel's out-of-memory killer)" if name == "SIGKILL" else ""
    return f"was ended by {name}{more}"


def resident_bytes(pids: Iterable[int]) -> int:
    """Return the resident bytes of the process groups led by `pids`; 0 where there is no /proc."""
    groups = set(pids)
    page, total = os.sysconf("SC_PAGE_SIZE"), 0
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return 0
    for name in names:
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[2]) in groups:
                total += int(fields[21]) * page
    return total

"""A warm start on CPU: one process imports torch and the adapter once, then forks a worker for each launch.

A forked worker is what a spawned one is: its own session, log, exchange folder, watchdog, and the
environment that its placement asks for; a launch that needs another environment gets another server, and one
that needs a device or a command of its own is spawned. The server runs no torch operation and starts no
thread, so that a child begins where a new process would stand after its imports. One difference remains:
/proc shows the server's environment for a forked worker, so what it forks (not executes) into a session of
its own is found only through its group.

An adapter module may list in `XCFG_PRELOAD` what its `build` imports; otherwise torch is imported beside it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcfg.running import exchange as files
from xcfg.running import guard
from xcfg.running.process import Process, child_environment, exit_code_of, spawn
from xcfg.running.serve import leave
from xcfg.running.serve import main as serve_main
from xcfg.schema.runtime import Placement

SERVE = (sys.executable, "-P", "-u", "-m", "xcfg.running.forkserver")
MAX_SERVERS = 3
READY_SECONDS = 300.0
ANSWER_SECONDS = 30.0
_PER_PROCESS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "XCFG_EXCHANGE", "XCFG_RENDEZVOUS")


class ForkServerError(Exception):
    """The server cannot be used; its launches are spawned instead."""


@dataclass
class ForkedProcess:
    """A worker that the server forked; the server is its parent and is asked for its exit status."""

    rank: int
    log: Path
    pid: int
    start: str
    server: _Server
    code: int | None = None

    def ended(self) -> int | None:
        """Return the exit code, -N for a signal, None while it lives."""
        if self.code is None:
            try:
                self.code = self.server.ask(op="poll", pid=self.pid)["code"]
            except ForkServerError:
                self.code = 1 if guard.is_gone(self.pid, self.start) else None
        return self.code

    def reap(self) -> None:
        """Let the server collect the exit status."""
        with contextlib.suppress(ForkServerError):
            self.server.ask(op="reap", pid=self.pid)


class _Server:
    """The supervisor's end of one server process."""

    def __init__(self, env: dict[str, str], module: str, log: Path) -> None:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as failed, theirs, log.open("ab") as stream:
            failed.callback(ours.close)
            self.popen = subprocess.Popen(
                [*SERVE, str(theirs.fileno()), module],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
            failed.pop_all()
        self._socket, self._reader = ours, ours.makefile("rb")
        self.ready = False

    def wait_ready(self) -> None:
        """Wait for the imports; ForkServerError when they left it in a state that must not be forked."""
        if not self.ready:
            answer = self._receive(READY_SECONDS)
            if answer.get("fault"):
                raise ForkServerError(str(answer["fault"]))
            self.ready = True

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send one question, return its answer; ForkServerError when the server is gone."""
        try:
            self._socket.sendall(json.dumps(question).encode() + b"\n")
        except OSError as error:
            raise ForkServerError(str(error)) from error
        return self._receive(ANSWER_SECONDS)

    def _receive(self, limit: float) -> dict[str, Any]:
        try:
            self._socket.settimeout(limit)
            line = self._reader.readline()
        except OSError as error:
            raise ForkServerError(str(error)) from error
        if not line:
            raise ForkServerError("the fork server is gone")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the server; its workers are ended by their own supervisors."""
        self._reader.close()
        self._socket.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


class ForkStarter:
    """Starts workers by fork where that equals a spawn, else by spawn. Close it after its workers."""

    def __init__(self, folder: Path) -> None:
        """Keep where the servers' logs go."""
        self._folder = folder
        self._servers: dict[tuple[str, str], _Server | None] = {}
        self.forked = 0

    def __call__(self, placement: Placement, exchange: Path, rank: int, rendezvous: str) -> Process:
        """Start one process; the signature of `process.spawn`."""
        if _forkable(placement):
            env = child_environment(placement, exchange, rank, rendezvous)
            server = self._ready(_shared(env), _module(files.read_construct(exchange).adapter))
            if server is not None:
                with contextlib.suppress(ForkServerError):
                    return self._fork(server, env, exchange, rank)
        return spawn(placement, exchange, rank, rendezvous)

    def expect(self, placement: Placement, adapter: str) -> None:
        """Begin the imports that a later launch will need, and do not wait for them."""
        if _forkable(placement):
            self._server(_shared(child_environment(placement, Path(), 0, "")), _module(adapter))

    def close(self) -> None:
        """End all servers."""
        for server in self._servers.values():
            if server is not None:
                server.close()
        self._servers.clear()

    def _fork(self, server: _Server, env: dict[str, str], exchange: Path, rank: int) -> ForkedProcess:
        log = exchange / f"worker-{rank}.log"
        log.touch()
        own = {name: env[name] for name in _PER_PROCESS if name in env}
        answer = server.ask(op="fork", env=own, log=str(log))
        if not answer.get("pid"):
            raise ForkServerError(str(answer.get("fault")))
        self.forked += 1
        pid = int(answer["pid"])
        return ForkedProcess(rank, log, pid, guard.start_time(pid), server)

    def _server(self, shared: dict[str, str], module: str) -> _Server | None:
        """Return the server for this environment and adapter, perhaps not ready; None where there can be none."""
        key = (json.dumps(shared, sort_keys=True), module)
        if key not in self._servers:
            if not module or sum(server is not None for server in self._servers.values()) >= MAX_SERVERS:
                return None
            log = self._folder / f"server-{len(self._servers)}.log"
            self._servers[key] = None
            with contextlib.suppress(OSError):  # no room for a log, or for a process: each launch then says so itself
                self._folder.mkdir(parents=True, exist_ok=True)
                self._servers[key] = _Server(shared, module, log)
        return self._servers[key]

    def _ready(self, shared: dict[str, str], module: str) -> _Server | None:
        """Return the server once its imports are done; None where it cannot be forked from."""
        server = self._server(shared, module)
        if server is not None:
            try:
                server.wait_ready()
            except ForkServerError:
                server.close()
                server = self._servers[json.dumps(shared, sort_keys=True), module] = None
        return server


def _forkable(placement: Placement) -> bool:
    return not placement.command and all(device == "cpu" for device in placement.devices)


def _shared(env: dict[str, str]) -> dict[str, str]:
    """Return what every worker of one server has in its environment."""
    return {name: value for name, value in env.items() if name not in _PER_PROCESS}


def _module(adapter: str) -> str:
    return adapter.partition(":")[0]


def preload(module: str) -> str:
    """Import the adapter's module and what it names; return why the result must not be forked, or nothing.

    An import that fails half-way leaves libraries behind with which the next try fails for another reason, or goes
    through; so the worker starts afresh and tells the first. What is not installed leaves nothing.
    """
    name = module
    try:
        for name in (module, *getattr(importlib.import_module(module), "XCFG_PRELOAD", ("torch",))):
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            return f"importing {name!r} failed: {error}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the worker meets it again and reports it
        return f"importing {name!r} failed: {error}"
    if threading.active_count() > 1:
        return f"importing {module!r} started threads"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return f"importing {module!r} initialised CUDA"
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it touches
    return ""


def _fork(question: dict[str, Any], inherited: list[socket.socket]) -> int:
    """Fork one worker; return its process id once it leads a session of its own."""
    hears, tells = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tells)
        os.read(hears, 1)
        os.close(hears)
        return pid
    try:
        os.setsid()
        for item in inherited:
            os.close(item.fileno())  # close() alone waits for the files that were made from the socket
        log = os.open(question["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for descriptor in (log, hears, tells):
            os.close(descriptor)
        os.environ.update(question["env"])
        _reseed()
        leave(serve_main())
    except BaseException as error:  # noqa: BLE001 - a fork must not return into the server's loop
        traceback.print_exception(error)
    os._exit(1)


def _reseed() -> None:
    """Give a fork generators of its own, as a new process has; Python's is reseeded by fork itself."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _answer(question: dict[str, Any], inherited: list[socket.socket]) -> dict[str, Any]:
    if question["op"] == "fork":
        try:
            return {"pid": _fork(question, inherited)}
        except OSError as error:
            return {"fault": str(error)}
    flags = os.WEXITED | os.WNOHANG | (os.WNOWAIT if question["op"] == "poll" else 0)
    try:
        return {"code": exit_code_of(os.waitid(os.P_PID, question["pid"], flags))}
    except ChildProcessError:
        return {"code": 1}


def main(arguments: list[str]) -> int:
    """Serve until the supervisor's end of the socket closes."""
    link = socket.socket(fileno=int(arguments[0]))
    link.sendall(json.dumps({"fault": preload(arguments[1])}).encode() + b"\n")
    with link, link.makefile("rb") as lines:
        for line in lines:
            link.sendall(json.dumps(_answer(json.loads(line), [link])).encode() + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""A supervisor that is killed with -9 leaves nothing alive, whatever its workers were doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from xcfg.schema.codec import pretty_json
from xcfg.schema.runtime import Placement

pytestmark = pytest.mark.timeout(60)

SUPERVISOR = """
import sys
from pathlib import Path
from xcfg.running.forkserver import ForkStarter
from xcfg.running.process import spawn
from xcfg.running.supervisor import Worker
from xcfg.schema.codec import decode_json
from xcfg.schema.runtime import Placement
from xcfg.schema.worker import ScoreRequest, WorkerSpec

spec = decode_json(Path(sys.argv[1]).read_bytes(), WorkerSpec)
placement = decode_json(Path(sys.argv[2]).read_bytes(), Placement)
starter = spawn if sys.argv[4] != "forked" else ForkStarter(Path(sys.argv[3]).with_name("servers"))
worker = Worker(spec, placement, Path(sys.argv[3]), starter=starter)
worker.start()
print("started", *[process.pid for process in worker.processes], flush=True)
if sys.argv[4] == "in-thread":
    import threading, time
    thread = threading.Thread(target=worker.wait_ready)
    thread.start(); thread.join()
    print("ready", flush=True)
    time.sleep(600)
worker.wait_ready()
print("ready", flush=True)
worker.score(ScoreRequest(id="a", arm="training"))
print("scored", flush=True)
import time
time.sleep(600)
"""


@pytest.fixture
def supervisor(tmp_path, launch):
    """Start a supervisor process; return it and the process ids of its workers."""
    started = []

    def start(options, placement, mode="plain"):
        made = launch(options, placement=placement)
        for name, value in (("spec", made.spec), ("placement", placement)):
            (tmp_path / f"{name}.json").write_bytes(pretty_json(value))
        (tmp_path / "supervisor.py").write_text(SUPERVISOR)
        arguments = [tmp_path / "spec.json", tmp_path / "placement.json", tmp_path / "exchange", mode]
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "supervisor.py"), *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, [int(pid) for pid in process.stdout.readline().split()[1:]]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for_pids(file: Path, wait_until) -> list[int]:
    assert wait_until(lambda: file.exists() and len(file.read_text().split()) == 3, 10.0)
    return [int(pid) for pid in file.read_text().split()]


@pytest.mark.parametrize("mode", ["plain", "forked"])
@pytest.mark.parametrize("then", ["hang", "spin"])
def test_kill_minus_nine_in_a_native_call_with_children(supervisor, tmp_path, wait_until, is_alive, then, mode):
    """The worker sleeps, or holds the interpreter lock; its children ignore SIGTERM; one left the session."""
    pids = tmp_path / "pids"
    process, workers = supervisor({"score": "children", "pids": str(pids), "then": then}, Placement(), mode)
    assert process.stdout.readline() == "ready\n"
    numbers = wait_for_pids(pids, wait_until)
    assert all(is_alive(pid) for pid in [*numbers, *workers])
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not any(is_alive(pid) for pid in [*numbers, *workers]), 3.0)


def test_kill_minus_nine_while_building_two_ranks(supervisor, wait_until, is_alive):
    process, workers = supervisor({"build": "hang"}, Placement(world_size=2, processes=2))
    assert len(workers) == 2 and all(is_alive(pid) for pid in workers)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not any(is_alive(pid) for pid in workers), 3.0)


def test_kill_minus_nine_while_idle(supervisor, wait_until, is_alive):
    process, workers = supervisor({}, Placement(world_size=2, processes=2))
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "scored\n"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not any(is_alive(pid) for pid in workers), 3.0)


def test_kill_minus_nine_with_a_foreign_command(supervisor, tmp_path, wait_until, is_alive):
    """The command does not know the protocol and puts a child into a session of its own, as torchrun does."""
    pids = tmp_path / "pids"
    script = tmp_path / "foreign.sh"
    script.write_text(f"setsid sleep 600 & one=$!\nsleep 600 & two=$!\necho $$ $one $two > {pids}\nwait\n")
    process, workers = supervisor({}, Placement(command=("sh", str(script))))
    numbers = wait_for_pids(pids, wait_until)
    assert all(is_alive(pid) for pid in [*numbers, *workers])
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not any(is_alive(pid) for pid in [*numbers, *workers]), 3.0)


def test_the_end_of_a_thread_of_the_supervisor_ends_no_worker(supervisor, is_alive):
    """A parent-death signal would fire here; nothing may."""
    process, workers = supervisor({}, Placement(), "in-thread")
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, 0)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    assert all(is_alive(pid) for pid in workers)

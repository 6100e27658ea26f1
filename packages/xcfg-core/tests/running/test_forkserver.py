"""Forked workers: as separate as spawned ones, only where that is possible, gone with their supervisor."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from xcfg.errors import LaunchError, ScoreTimeoutError, WorkerError
from xcfg.running.pool import WorkerPool
from xcfg.schema.runtime import Placement

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _light(adapters):
    """These adapters need no torch, and say so."""
    file = adapters / "fake_engine.py"
    file.write_text(file.read_text(encoding="utf-8") + "\nXCFG_PRELOAD = ('numpy',)\n", encoding="utf-8")


@pytest.fixture
def forks(tmp_path):
    with WorkerPool(tmp_path / "forks", build_timeout=20, score_timeout=20, forkserver=True) as pool:
        yield pool


def test_workers_are_separate_processes_with_their_own_session_and_log(forks, launch, request_of):
    scores = [
        forks.score(launch(construction=name, placement=Placement(world_size=2, processes=2)), request_of(name))
        for name in "ab"
    ]
    assert forks._forks.forked == 4
    provenances = [report.provenance for score in scores for report in score.builds]
    pids = [item["pid"] for item in provenances]
    assert len(set(pids)) == 4 and all(os.getsid(pid) == pid == os.getpgid(pid) for pid in pids)
    assert [item["env"]["RANK"] for item in provenances] == ["0", "1", "0", "1"]
    assert len({item["rendezvous"] for item in provenances}) == 2
    for score in scores:
        for rank in (0, 1):
            text = score.logs[f"worker-{rank}.log"].read_text(encoding="utf-8")
            assert text.count("building rank") == 1 and f"building rank {rank}" in text
    assert np.allclose(scores[1].tensors(1)["selected_logprob"][0], -1.005)


def test_state_of_one_worker_does_not_reach_the_next(forks, adapters, launch, request_of):
    """Module globals, environment and numpy's generator start afresh in every fork."""
    (adapters / "global_engine.py").write_text(
        "import os\nimport numpy as np\nfrom fake_engine import Fake\n"
        "from xcfg.schema.worker import BuildReport\n"
        "XCFG_PRELOAD = ()\nSEEN = []\n"
        "class Global(Fake):\n"
        "    def build(self, spec, context):\n"
        "        super().build(spec, context)\n"
        "        SEEN.append(1); os.environ['LEAK'] = os.environ.get('LEAK', '') + 'x'\n"
        "        more = {'seen': len(SEEN), 'leak': os.environ['LEAK'], 'random': np.random.random()}\n"
        "        return BuildReport(rank=context.rank, world_size=1, provenance=more)\n"
    )
    more = [
        forks.score(launch(construction=name, adapter="global_engine:Global"), request_of(name)).builds[0].provenance
        for name in "ab"
    ]
    assert [item["seen"] for item in more] == [1, 1] and [item["leak"] for item in more] == ["x", "x"]
    assert more[0]["random"] != more[1]["random"]
    assert forks._forks.forked == 2


def test_another_environment_is_another_server(forks, launch, request_of):
    for value in ("1", "2", "1"):
        placement = Placement(env={"MARKER": value})
        build = forks.score(launch(construction=value, placement=placement), request_of(value)).builds[0]
        assert build.provenance["env"]["MARKER"] == value
    assert len(forks._forks._servers) == 2


def test_imports_of_engines_to_come_run_beside_the_first_ones_work(forks, adapters, launch, request_of):
    """Once per environment, not waited for; what can never be forked gets none."""
    (adapters / "slow_engine.py").write_text(
        "import time\nfrom fake_engine import Fake\ntime.sleep(2)\nIMPORTED = time.time()\n"
    )
    slow = [
        launch(construction=name, adapter="slow_engine:Fake", placement=Placement(env={"MARKER": "1"})) for name in "ab"
    ]
    began = time.time()
    forks.expect([*slow, launch(placement=Placement(devices=("cuda:0",))), launch(placement=Placement(command=("x",)))])
    assert time.time() - began < 1 and len(forks._forks._servers) == 1
    assert not next(iter(forks._forks._servers.values())).ready
    for launched, name in zip(slow, "ab", strict=True):
        assert forks.score(launched, request_of(name)).reports
    assert len(forks._forks._servers) == 1 and forks._forks.forked == 2


def test_devices_are_never_forked(forks, launch, request_of):
    forks.score(launch(placement=Placement(devices=("cuda:0",))), request_of())
    assert forks._forks.forked == 0


def test_an_import_that_starts_threads_is_spawned(forks, adapters, launch, request_of):
    (adapters / "threaded_engine.py").write_text(
        "import threading, time\nfrom fake_engine import Fake\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    assert forks.score(launch(adapter="threaded_engine:Fake"), request_of()).reports
    assert forks._forks.forked == 0


def test_an_import_that_fails_half_way_is_told_by_a_process_that_starts_afresh(forks, adapters, launch, request_of):
    """Failing means that the report names what the first failure left behind, or that an engine runs on it."""
    (adapters / "half_library.py").write_text(
        "import sys\nassert not hasattr(sys, 'left_behind'), 'loaded twice'\nsys.left_behind = True\n"
        "raise RuntimeError('the true reason')\n"
    )
    (adapters / "half_engine.py").write_text("from fake_engine import Fake\nimport half_library\n")
    with pytest.raises(LaunchError, match="the true reason"):
        forks.score(launch(adapter="half_engine:Fake"), request_of())
    assert forks._forks.forked == 0


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"build": "raise"}, LaunchError, "ünïcode"),
        ({"score": "exit3"}, WorkerError, "exit code 3"),
        ({"score": "kill"}, WorkerError, "SIGKILL"),
        ({"score": "hang"}, ScoreTimeoutError, "gave no answer"),
    ],
)
def test_faults_of_forked_workers(forks, launch, request_of, is_alive, options, kind, text):
    forks.score_timeout = 1.5
    pids = []
    forks._on_event = lambda event: pids.extend(event.get("pids", ()))
    with pytest.raises(kind, match=text):
        forks.score(launch(options), request_of())
    assert forks._forks.forked == 1 and not any(is_alive(pid) for pid in pids)
    assert forks.score(launch(construction="next"), request_of("b")).reports, "the server serves on"


def test_adapter_that_is_not_there(forks, launch, request_of):
    with pytest.raises(LaunchError, match="nowhere_engine"):
        forks.score(launch(adapter="nowhere_engine:X"), request_of())


def test_children_of_a_forked_worker_die_with_it(tmp_path, launch, request_of, is_alive):
    pids = tmp_path / "pids"
    with WorkerPool(tmp_path / "s", forkserver=True) as pool:
        pool.score(launch({"score": "children", "pids": str(pids)}), request_of())
        numbers = [int(pid) for pid in pids.read_text().split()]
        assert len(numbers) == 3 and all(is_alive(pid) for pid in numbers)
        servers = [server.popen.pid for server in pool._forks._servers.values()]
    assert not any(is_alive(pid) for pid in [*numbers, *servers])


def test_a_server_that_was_killed_is_not_missed(forks, launch, request_of, is_alive):
    first = forks.score(launch(construction="a"), request_of("a"))
    (server,) = forks._forks._servers.values()
    server.popen.kill()
    server.popen.wait()
    assert forks.score(launch(construction="a"), request_of("a2")).reused, "its workers live on"
    assert forks.score(launch(construction="b"), request_of("b")).reports
    forks.close()
    assert not is_alive(first.builds[0].provenance["pid"])


def test_a_server_that_cannot_be_started_costs_nothing_but_its_speed(forks, launch, request_of):
    """Failing means that a full temporary folder ends the run with a traceback before the first case."""
    forks.scratch.mkdir()
    forks._forks._folder.touch()  # no folder for its log
    forks.expect([launch()])
    assert forks.score(launch(), request_of()).reports
    assert forks._forks.forked == 0

"""What goes wrong: each fault has its own error, names the rank, shows the log, leaves no process."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from xcfg.errors import (
    ExecutionError,
    InterruptedRunError,
    LaunchError,
    MissingRankError,
    ScoreTimeoutError,
    WorkerError,
)
from xcfg.running.pool import WorkerPool
from xcfg.schema.runtime import Placement

pytestmark = pytest.mark.timeout(60)
ONE = Placement()
TWO = Placement(world_size=2, processes=2)


@pytest.fixture
def failing(pool, launch, request_of, is_alive):
    """Score with a fault; return the error after checking that every process is gone and the log is named."""

    def fail(options, kind, *, placement=ONE, build=20.0, score=20.0, adapter="fake_engine:Fake"):
        pool.build_timeout, pool.score_timeout = build, score
        pids = []
        pool._on_event = lambda event: pids.extend(event.get("pids", ()))
        with pytest.raises(ExecutionError) as caught:
            pool.score(launch(options, placement=placement, adapter=adapter), request_of())
        assert isinstance(caught.value, kind), repr(caught.value)
        assert pids and not any(is_alive(pid) for pid in pids)
        assert all(path.exists() for path in caught.value.logs.values()) and caught.value.logs
        assert pool.alive == 0
        return caught.value

    return fail


def test_hang_in_build(failing):
    error = failing({"build": "hang"}, ScoreTimeoutError, build=4.5)
    assert "rank 0 of 1 gave no answer within 4.5 s while building" in error.message
    assert error.error_kind == "timeout"
    log = error.logs["worker-0.log"].read_text(encoding="utf-8")
    assert "in fault" in log and "fake_engine.py" in log, "the stack of the hanging rank belongs in the log"


def test_hang_in_score_of_one_rank(failing):
    error = failing({"score": "hang", "rank": 1}, ScoreTimeoutError, placement=TWO, score=1.5)
    assert "rank 1 of 2" in error.message and "while scoring" in error.message
    assert "about to hang" in error.hint or "in fault" in error.hint


def test_hang_that_holds_the_interpreter_lock(failing):
    assert "rank 0" in failing({"score": "spin"}, ScoreTimeoutError, score=1.5).message


@pytest.mark.parametrize(("stage", "kind"), [("build", LaunchError), ("score", WorkerError)])
def test_exit_code_3(failing, stage, kind):
    error = failing({stage: "exit3"}, kind)
    assert "rank 0 ended with exit code 3" in error.message
    assert "leaving now" in error.hint and "worker-0.log" in error.hint


def test_killed_while_scoring(failing):
    error = failing({"score": "kill"}, WorkerError)
    assert "was ended by SIGKILL" in error.message and error.rank == 0


@pytest.mark.parametrize(("stage", "kind"), [("build", LaunchError), ("score", WorkerError)])
def test_one_rank_of_two_is_killed(failing, stage, kind):
    error = failing({stage: "kill", "rank": 1}, kind, placement=TWO)
    assert "rank 1 was ended by SIGKILL" in error.message
    assert set(error.logs) == {"worker-0.log", "worker-1.log"} and error.rank == 1


def test_leaving_without_a_report_is_a_missing_rank(failing):
    error = failing({"score": "exit0", "rank": 1}, MissingRankError, placement=TWO)
    assert "rank 1 of 2 never reported" in error.message


def test_hosted_rank_that_does_not_report(failing):
    error = failing({"hosted": [1]}, MissingRankError, placement=Placement(world_size=3, processes=1))
    assert "rank 2 of 3 never reported" in error.message


def test_duplicate_rank_in_a_report(failing):
    error = failing({"claimed_rank": 0}, MissingRankError, placement=TWO)
    assert "already" in error.message or "twice" in error.message


def test_rank_beyond_the_world(failing):
    assert "rank 1" in failing({"hosted": [1]}, MissingRankError).message


def test_another_world_size(failing):
    error = failing({"claimed_world": 1}, MissingRankError, placement=TWO)
    assert "runs in a world of 1 where 2 ranks must report" in error.message


def test_answer_to_another_request(failing):
    assert "'other'" in failing({"claimed_request": "other"}, WorkerError).message


@pytest.mark.parametrize(("stage", "kind"), [("build", LaunchError), ("score", WorkerError)])
def test_garbage_report(failing, stage, kind):
    error = failing({stage: "garbage"}, kind)
    assert "cannot be read" in error.message and "not JSON" in error.message


def test_tensors_that_are_not_the_reported_ones(failing):
    error = failing({"score": "swap"}, WorkerError)
    assert "is not the file that rank 0 reported" in error.message and "SHA-256" in error.hint


def test_exception_in_build_is_a_report(failing):
    error = failing({"build": "raise"}, LaunchError)
    assert "ValueError: the engine said ünïcode no" in error.message
    assert "fake_engine.py" in error.traceback and error.error_kind == "engine"


@pytest.mark.parametrize(
    ("fault", "kind"), [("unsupported", "unsupported"), ("identity", "identity"), ("sysexit", "engine")]
)
def test_kinds_of_reported_errors(failing, fault, kind):
    assert failing({"build": fault}, LaunchError).error_kind == kind


@pytest.mark.parametrize(
    ("adapter", "text"),
    [
        ("nowhere_engine:Fake", "nowhere_engine"),
        ("fake_engine:Nothing", "Nothing"),
        ("nonsense", "module:attr"),
        ("", "module:attr"),
    ],
)
def test_adapter_that_is_not_there(failing, adapter, text):
    assert text in failing({}, LaunchError, adapter=adapter).message


def test_command_that_is_not_there(pool, launch, request_of):
    placement = Placement(command=("no-such-launcher", "x"))
    with pytest.raises(LaunchError, match="no-such-launcher"):
        pool.score(launch(placement=placement), request_of())
    assert pool.alive == 0


def test_error_then_the_next_request_works(pool, launch, request_of):
    asked = launch({"score": "raise", "on": 1})
    with pytest.raises(WorkerError, match="ünïcode") as caught:
        pool.score(asked, request_of("first"))
    assert caught.value.worker_usable and pool.alive == 1
    score = pool.score(asked, request_of("second"))
    assert score.reused and score.reports[0].counters["count"] == 2
    assert np.isfinite(score.tensors(0)["selected_logprob"]).all()


def test_error_of_one_rank_while_the_other_hangs_ends_the_worker(failing):
    """The other rank may sit in a collective for ever; its time limit is not waited for."""
    started = time.monotonic()
    error = failing({"score": {"0": "hang", "1": "raise"}}, WorkerError, placement=TWO)
    assert error.rank == 1 and "ünïcode" in error.message and not error.worker_usable
    assert time.monotonic() - started < 10


def test_sticky_device_error_ends_the_worker(failing):
    error = failing({"score": "cuda"}, WorkerError)
    assert not error.worker_usable and "CUDA error" in error.message


def test_a_hundred_megabytes_of_output_do_not_block(pool, launch, request_of):
    score = pool.score(launch({"score": "noise"}), request_of())
    assert score.logs["worker-0.log"].stat().st_size > 100 * 2**20
    score.logs["worker-0.log"].unlink()


@pytest.mark.parametrize("then", ["return", "hang"])
def test_children_of_a_worker_die_with_it(tmp_path, launch, request_of, is_alive, then):
    """Also those that ignore SIGTERM, and those in a session of their own."""
    pids = tmp_path / "pids"
    with WorkerPool(tmp_path / "s", score_timeout=2.0) as pool:
        options = {"score": "children", "pids": str(pids), "then": then}
        if then == "hang":
            with pytest.raises(ScoreTimeoutError):
                pool.score(launch(options), request_of())
        else:
            pool.score(launch(options), request_of())
            assert all(is_alive(int(pid)) for pid in pids.read_text().split()), "otherwise this test shows nothing"
    numbers = [int(pid) for pid in pids.read_text().split()]
    assert len(numbers) == 3 and not any(is_alive(pid) for pid in numbers)


def test_close_that_hangs_is_cut_short(tmp_path, launch, request_of, is_alive):
    pool = WorkerPool(tmp_path / "s")
    pid = pool.score(launch({"close": "hang"}), request_of()).builds[0].provenance["pid"]
    for held in pool._held.values():
        held.worker.close_timeout = 0.5
    started = time.monotonic()
    pool.close()
    assert not is_alive(pid) and time.monotonic() - started < 5


def test_a_worker_that_died_between_requests_is_replaced(pool, launch, request_of, wait_until):
    pid = pool.score(launch(), request_of("a")).builds[0].provenance["pid"]
    os.kill(pid, signal.SIGKILL)
    (held,) = pool._held.values()
    assert wait_until(lambda: not held.worker.alive)
    score = pool.score(launch(), request_of("b"))
    assert not score.reused and score.builds[0].provenance["pid"] != pid


def test_a_request_that_cannot_be_written_is_a_fault_of_its_score(pool, launch, request_of, is_alive):
    """Failing means that a temporary folder that fills up between two scores ends every case with a traceback."""
    pid = pool.score(launch(), request_of("a")).builds[0].provenance["pid"]
    (held,) = pool._held.values()
    folder, held.worker.exchange = held.worker.exchange, held.worker.exchange / "gone"
    with pytest.raises(WorkerError, match="the exchange folder failed"):
        pool.score(launch(), request_of("b"))
    assert not is_alive(pid) and pool.alive == 0
    assert pool.score(launch(), request_of("c")).reports, f"{folder} is of no account any more"


@pytest.mark.parametrize("stage", ["build", "score"])
def test_ctrl_c(tmp_path, launch, request_of, is_alive, stage, events):
    pool = WorkerPool(tmp_path / "s", on_event=events.append)
    timer = threading.Timer(1.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(InterruptedRunError) as caught:
            pool.score(launch({stage: "hang", "rank": 1}, placement=TWO), request_of())
    finally:
        timer.cancel()
    pids = [pid for event in events for pid in event.get("pids", ())]
    assert len(pids) == 2 and not any(is_alive(pid) for pid in pids)
    assert caught.value.exit_code == 130 and pool.alive == 0
    assert str(tmp_path) not in str(caught.value), "the journeys remove this folder, so nobody is sent there"

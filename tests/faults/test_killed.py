"""Whatever is killed, hung or interrupted: clear words, nothing lost, nothing false, nobody left behind."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

DRIVERS = Path(__file__).parent / "drivers"
ENGINES = ("faulty_engines",)
LIMIT = 60
STOPS = (11, 70, 30, 40, 20)
"""Each run goes on where the last one died, so that these walk through a whole run."""


def holding(flag: Path, side: str, rank: int = 0) -> dict[str, str]:
    """The environment that makes one rank of the runtime faulty-waiting stop in the middle of a score."""
    flag.touch()
    return {"FAULT_FLAG": str(flag), "FAULT_SIDE": side, "FAULT_RANK": str(rank)}


def ends_well(lab, experiment, root, *arguments, flag=None, cases=1):
    """Run again, plainly: everything passes and verifies, and what was sealed is as it was."""
    before = lab.files(root)
    if flag is not None:
        flag.unlink(missing_ok=True)
    done = lab.run(experiment, root, *arguments, plugins=ENGINES)
    assert (done.code, list(done.statuses.values())) == (0, ["PASS"] * cases), done.stdout + done.stderr
    after = lab.files(root)
    assert {path: digest for path, digest in before.items() if after.get(path) != digest} == {}
    lab.verified(root)
    return done


@pytest.fixture(scope="module")
def hanging(lab, frozen, tmp_path_factory):
    """A run whose training worker hangs; it waits for its limit while other tests work."""
    folder = tmp_path_factory.mktemp("hanging")
    flag, root = folder / "flag", folder / "runs"
    experiment = lab.experiment(folder / "held.json", frozen)
    words = ("--json", "--training", "faulty-waiting", "--timeout-seconds", LIMIT)
    environment = holding(flag, "training")
    return (
        lab.start("run", experiment, "--output-root", root, *words, plugins=ENGINES, **environment),
        experiment,
        root,
        flag,
    )


@pytest.mark.usefixtures("hanging")
@pytest.mark.timeout(1500)
def test_kill_9_at_every_write_boundary(lab, tmp_path, record_property):
    """Failing means that a run that dies at some moment loses, repeats or falsifies something."""
    experiment = lab.smoke(tmp_path / "s0.json")
    running = [lab.program(DRIVERS / "sweep.py", experiment, tmp_path / f"part-{part}", part, 2) for part in range(2)]
    results = [json.loads(lab.checked(item.end(1200)).stdout) for item in running]
    assert [text for result in results for text in result["wrong"]] == []
    names = [result["boundaries"] for result in results]
    assert results[0]["statuses"] == ["PASS", "PASS"]
    assert len(names[0]) == len(names[1]) > 150
    # Guards the test itself: were the hook no longer called around writes, nothing would be killed there.
    kinds = Counter(name.split()[0] for name in names[0])
    assert set(kinds) == {"mkdir", "open", "write", "fsync", "link", "rename"}
    record_property("boundaries", len(names[0]))
    print(f"{len(names[0])} boundaries, killed at each, {max(result['seconds'] for result in results)} s")


def test_a_real_run_that_is_killed_again_and_again(lab, frozen, tmp_path, record_property):
    """Failing means that a run which is killed at whatever point of its writing cannot go on from there."""
    experiment, root = lab.experiment(tmp_path / "tiny.json", frozen), tmp_path / "runs"
    whole = lab.checked(lab.program(DRIVERS / "run_until.py", experiment, tmp_path / "whole", -1).end())
    count = len(json.loads(whole.stdout)["boundaries"])
    print(f"{count} boundaries, killed {len(STOPS)} times")
    record_property("boundaries", count)
    sealed: set[str] = set()
    for point, stop in enumerate(STOPS):
        done = lab.checked(lab.program(DRIVERS / "run_until.py", experiment, root, stop).end())
        assert done.code == -signal.SIGKILL, done.stdout
        if point:  # the first is killed before there is anything to verify
            lab.verified(root)
        now = {path.parent.name for path in root.glob("*/scores/*/COMPLETE")}
        assert sealed <= now
        sealed = now
    assert sealed, "no run got as far as a sealed score; choose other stops"
    ends_well(lab, experiment, root)
    assert not list(root.glob("*/scores/*.r2")), "a sealed score was made again"


@pytest.mark.parametrize(("side", "rank"), [("rollout", 0), ("training", 1)], ids=["worker", "one rank of two"])
def test_kill_9_of_a_worker_that_scores(lab, frozen, tmp_path, side, rank):
    """Failing means that a worker that dies takes the run, or another worker's result, with it."""
    flag, root = tmp_path / "flag", tmp_path / "runs"
    sharding = {"training.sharding": "fsdp"} if side == "training" else {}
    experiment = lab.experiment(tmp_path / "held.json", frozen, baseline=sharding)
    words = (f"--{side}", "faulty-waiting")
    running = lab.start(
        "run", experiment, "--output-root", root, "--json", *words, plugins=ENGINES, **holding(flag, side, rank)
    )
    held = int(lab.wait_for(flag.with_suffix(".pid"), running))
    flag.unlink()  # so that the worker of the next arm is not held as well
    os.kill(held, signal.SIGKILL)
    done = lab.checked(running.end())
    case = done.case()
    if side == "training":
        assert (done.code, case["status"], case["edges"]) == (4, "WORKER_FAILED", {})
        reason = case["reason"]
    else:  # prefill is scored first and decides nothing: the verdict stands, and what is missing is named
        assert (done.code, case["status"], list(case["missing_arms"])) == (0, "PASS", ["rollout_prefill"])
        reason = case["missing_arms"]["rollout_prefill"]
    assert f"rank {rank} was ended by SIGKILL" in reason and "while scoring" in reason
    lab.verified(root)
    kept = {path.parent.name for path in root.glob("*/scores/*/COMPLETE")}
    again = ends_well(lab, experiment, root, *words, flag=flag)
    assert (again.case()["attempt_id"], again.case()["missing_arms"]) == ("attempt-0002", {})
    assert {path.name for path in root.glob("*/scores/*")} >= kept
    assert not list(root.glob("*/scores/*.r2"))


def test_a_worker_that_hangs(lab, hanging):
    """Failing means that a hanging engine hangs the run."""
    running, experiment, root, flag = hanging
    done = lab.checked(running.end())
    case = done.case()
    assert (done.code, case["status"], case["edges"]) == (4, "TIMEOUT", {})
    assert f"gave no answer within {LIMIT} s" in case["reason"]
    log = next(lab.attempt(root, case).glob("worker-*.log")).read_text()
    assert "in held" in log, "the log does not say where the worker hung"
    lab.verified(root)
    ends_well(lab, experiment, root, "--training", "faulty-waiting", flag=flag)


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_ctrl_c_and_a_closed_terminal(lab, frozen, tmp_path, name):
    """Failing means that an interrupted run is lost, or keeps a GPU busy."""
    flag, root = tmp_path / "flag", tmp_path / "runs"
    experiment = lab.experiment(
        tmp_path / "held.json",
        frozen,
        interventions=[{"path": "training.attention_backend", "values": ["eager"]}],
    )
    words = ("--rollout", "faulty-waiting")
    # Under nohup HUP is ignored, behind `&` in a script INT is; a child inherits that, and xcfg leaves it so.
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        running = lab.start(
            "run", experiment, "--output-root", root, "--json", *words, plugins=ENGINES, **holding(flag, "rollout")
        )
    finally:
        signal.signal(number, before)
    lab.wait_for(flag.with_suffix(".pid"), running)
    running.signal(number)
    done = lab.checked(running.end(60))
    assert done.code == done.document["exit_code"] == 130
    assert set(done.statuses.values()) == {"CANCELLED"}
    kept = {path.parent.name for path in root.glob("*/scores/*/COMPLETE")}
    assert len(kept) >= 2, "the training scores had ended and were lost"
    ends_well(lab, experiment, root, *words, flag=flag, cases=2)
    assert not list(root.glob("*/scores/*.r2"))


def test_kill_9_of_the_supervisor_while_a_worker_scores(lab, frozen, tmp_path):
    """Failing means that workers of a killed run stay, and hold the machine."""
    flag, root = tmp_path / "flag", tmp_path / "runs"
    experiment = lab.experiment(tmp_path / "held.json", frozen, baseline={"training.sharding": "fsdp"})
    words = ("--training", "faulty-waiting")
    running = lab.start(
        "run", experiment, "--output-root", root, "--json", *words, plugins=ENGINES, **holding(flag, "training", 1)
    )
    lab.wait_for(flag.with_suffix(".pid"), running)
    assert len(lab.alive(running.mark)) >= 4, "the supervisor, its server and two ranks carry the mark"
    os.kill(running.process.pid, signal.SIGKILL)
    assert running.end().code == -signal.SIGKILL
    assert lab.survivors(running.mark) == []
    ends_well(lab, experiment, root, *words, flag=flag)


def test_a_case_that_is_lost_is_not_scored_to_its_end(lab, frozen, tmp_path):
    """Failing means that hours on a GPU go into a case without a verdict, and that nobody hears why until the end."""
    experiment, root = lab.experiment(tmp_path / "lost.json", frozen, interventions=[]), tmp_path / "runs"
    done = lab.xcfg("run", experiment, "--output-root", root, "--training-devices", "cuda:63")
    assert done.code == 4
    lines = done.stderr.splitlines()
    assert sum("scoring" in line for line in lines) == 1, done.stderr
    assert any("baseline · training: LAUNCH_FAILED" in line and "cuda:63" in line for line in lines), done.stderr
    assert "LAUNCH_FAILED" in done.stdout


def test_a_freeze_that_is_told_to_end_leaves_nothing_half_written(lab, tmp_path):
    """Failing means that a scheduler's time limit leaves half a rollout, or a worker that samples on."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"token_ids": [1, 2, 3]}\n' * 64)
    words = ("--checkpoint", "builtin:tiny-qwen3-512", "--prompts", prompts, "--max-new-tokens", 500)
    running = lab.start("freeze", *words, "--output", tmp_path / "out" / "roll")
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").glob(".tmp-*")):
        assert running.process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    running.process.terminate()
    done = lab.checked(running.end(60))
    assert done.code == 130
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())

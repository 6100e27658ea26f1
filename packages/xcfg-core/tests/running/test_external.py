"""The runtime `external`: options, and real commands that speak the protocol."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from xcfg.errors import ConfigError, LaunchError, MissingRankError, WorkerError
from xcfg.running.external import EXTERNAL, declared_arms, describe, place, programs
from xcfg.schema.runtime import Placement, PlacementRequest

pytestmark = pytest.mark.timeout(90)

PROGRAM = """
import os, sys
from pathlib import Path
from fake_engine import Fake
from xcfg.running.serve import serve

raise SystemExit(serve(Fake(), Path(os.environ["XCFG_EXCHANGE"])))
"""

BARE = '''
"""Speaks the protocol with nothing but the standard library: what the smallest foreign engine has to do."""
import hashlib, json, os, struct, sys, time
from pathlib import Path

exchange = Path(os.environ["XCFG_EXCHANGE"])

def put(name, data):
    temporary = exchange / (".tmp-" + name)
    temporary.write_bytes(data)
    temporary.rename(exchange / name)

put("ready-0.json", json.dumps({"rank": 0, "world_size": 1, "compute_dtype": "float32"}).encode())
served = set()
while not (exchange / "stop").exists():
    for request in sorted(exchange.glob("request-*.json")):
        if request.name in served:
            continue
        served.add(request.name)
        name = json.loads(request.read_text())["id"]
        payload = struct.pack("<3f", -1.0, -2.0, -3.0)
        about = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
        header = json.dumps({"selected_logprob": about}).encode()
        data = struct.pack("<Q", len(header)) + header + payload
        put(f"scores-{name}-0.safetensors", data)
        report = {"request_id": name, "rank": 0, "tensors_sha256": hashlib.sha256(data).hexdigest()}
        put(f"done-{name}-0.json", json.dumps(report).encode())
    time.sleep(0.005)
'''


def placement(options, side="training"):
    return place(PlacementRequest(side=side, knobs={"training.sharding": "fsdp"}, options=options, devices=("cpu",)))


def test_placement_of_a_command():
    placed = placement({"command": ["torchrun", "x.py"], "world_size": 2, "env": {"A": "b"}, "arms": ["training"]})
    assert placed == Placement(world_size=2, processes=1, env={"A": "b"}, command=("torchrun", "x.py"))


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "command"),
        ({"command": "torchrun x.py"}, "command"),
        ({"command": []}, "command"),
        ({"command": ["a", 1]}, "command"),
        ({"command": ["a"], "world_size": 0}, "world_size"),
        ({"command": ["a"], "world_size": True}, "world_size"),
        ({"command": ["a"], "env": {"A": 1}}, "env"),
        ({"command": ["a"], "arms": []}, "arms"),
        ({"command": ["a"], "arms": ["rollout_decode"]}, "arms"),
        ({"command": ["a"], "wordl_size": 2}, "wordl_size"),
        ({"command": ["a"], "sources": "score.py"}, "sources"),
        ({"command": ["a"], "sources": [""]}, "sources"),
        ({"command": ["a"], "sources": ["json", "no_such_module"]}, "sources[1]"),
        ({"command": ["a"], "sources": ["no/such/file.py"]}, "sources[0]"),
        ({"command": ["python", "-m", "no_such_module.score"]}, "command"),
        ({"command": ["torchrun", "-m", "--nproc-per-node", "2", "no_such_module"]}, "command"),
        ({"command": ["python", "-m", "xcfg.running.serve"], "adapter": "no_such_module:Mine"}, "adapter"),
    ],
)
def test_options_at_fault_are_named(options, path):
    with pytest.raises(ConfigError) as caught:
        placement(options)
    assert caught.value.path == f"$.runtime_options.training.{path}"


def test_a_folder_without_sources_is_no_source(tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "conf.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"no folder with \.py files"):
        placement({"command": ["a"], "sources": [str(folder)]})


def test_a_module_is_found_where_the_command_would_find_it(tmp_path, monkeypatch):
    """Failing means that `-m NAME` is refused, or hashed from another place than the one that is run."""
    for folder in ("here", "there"):
        (tmp_path / folder / "kit_trainer").mkdir(parents=True)
        (tmp_path / folder / "kit_trainer" / "__init__.py").write_text("")
    words = ["torchrun", "-m", "kit_trainer.score"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"'kit_trainer\.score' is not found here"):
        placement({"command": words})
    assert placement({"command": words, "sources": ["here"]}), "the user said what counts"
    env = {"PYTHONPATH": f"nowhere{os.pathsep}{tmp_path / 'there'}"}
    placement({"command": words, "env": env})
    assert programs(words, {"env": env}) == {"module:0:kit_trainer.score": (tmp_path / "there" / "kit_trainer",)}
    monkeypatch.chdir(tmp_path / "here")
    assert programs(words, {"env": env}) == {"module:0:kit_trainer.score": (tmp_path / "here" / "kit_trainer",)}


@pytest.mark.parametrize(
    "words",
    [
        ["numactl", "-m", "0"],
        ["python", "-m", "xcfg.running.serve"],
        ["python", "-m", "torch.distributed.run", "--rdzv-endpoint", "localhost:0"],
        ["sh", "-c", "exit"],
    ],
)
def test_words_that_name_no_program_of_the_user_s(words):
    placement({"command": words})
    assert programs(words, {}) == {}


def test_a_folder_that_python_runs_counts(tmp_path):
    (tmp_path / "__main__.py").write_text("")
    assert programs(["python", str(tmp_path)], {}) == {f"1:{tmp_path.name}": (tmp_path,)}


def test_arms_are_what_the_options_declare():
    assert declared_arms("rollout", {}) == ("rollout_prefill", "rollout_decode")
    assert describe({"rollout": {"arms": ["rollout_prefill"]}}).forced_replay is False
    assert describe({}).forced_replay and describe({}).arms == EXTERNAL.arms


def test_every_knob_is_passed_through():
    assert {(item.path, item.side, item.values) for item in EXTERNAL.capabilities} == {
        ("*", "training", ()),
        ("*", "rollout", ()),
    }


def test_program_of_ones_own(pool, launch, request_of, tmp_path, is_alive):
    (tmp_path / "score.py").write_text(PROGRAM)
    placed = Placement(command=(sys.executable, str(tmp_path / "score.py")))
    for name in "ab":
        score = pool.score(launch(placement=placed, adapter=""), request_of(name))
        assert np.allclose(score.tensors(0)["selected_logprob"][0], -0.005)
    pid = score.builds[0].provenance["pid"]
    assert is_alive(pid)
    pool.close()
    assert not is_alive(pid)
    assert "closed rank 0" in score.logs["worker-0.log"].read_text(encoding="utf-8")


def test_program_without_xcfg(pool, launch, request_of, tmp_path):
    (tmp_path / "bare.py").write_text(BARE)
    placed = Placement(command=(sys.executable, "-I", "-S", str(tmp_path / "bare.py")))
    score = pool.score(launch(placement=placed, adapter=""), request_of())
    assert score.tensors(0)["selected_logprob"].tolist() == [-1.0, -2.0, -3.0]


def test_exit_code_of_a_command(pool, launch, request_of):
    with pytest.raises(LaunchError, match="exit code 3") as caught:
        pool.score(
            launch(placement=Placement(command=("sh", "-c", "echo said this; exit 3")), adapter=""),
            request_of(),
        )
    assert "said this" in caught.value.hint


def test_signal_of_a_command(pool, launch, request_of):
    with pytest.raises(LaunchError, match="SIGKILL"):
        pool.score(launch(placement=Placement(command=("sh", "-c", "kill -9 $$")), adapter=""), request_of())


def test_command_that_ends_without_a_report(pool, launch, request_of):
    with pytest.raises(MissingRankError, match="rank 0 of 1 never reported"):
        pool.score(launch(placement=Placement(command=("true",)), adapter=""), request_of())


def test_two_processes_that_claim_one_rank(pool, launch, request_of):
    worker = f"{sys.executable} -m xcfg.running.serve"
    placed = Placement(world_size=2, command=("sh", "-c", f"RANK=0 {worker} & RANK=0 {worker} & wait"))
    with pytest.raises(MissingRankError, match="another process answers for rank 0 already"):
        pool.score(launch(placement=placed), request_of())


def test_a_rank_that_the_command_never_starts(pool, launch, request_of):
    pool.build_timeout = 3.0
    placed = Placement(world_size=2, command=("sh", "-c", f"RANK=0 {sys.executable} -m xcfg.running.serve"))
    with pytest.raises(MissingRankError, match="rank 1 of 2 did not report within 3 s"):
        pool.score(launch(placement=placed), request_of())


def test_torchrun(pool, launch, request_of, is_alive):
    torchrun = Path(sys.executable).with_name("torchrun")
    command = (
        [str(torchrun)]
        if torchrun.exists()
        else [shutil.which("python") or sys.executable, "-m", "torch.distributed.run"]
    )
    words = (
        *command,
        "--standalone",
        "--nproc-per-node",
        "2",
        "--no-python",
        sys.executable,
        "-m",
        "xcfg.running.serve",
    )
    pool.build_timeout = 60.0
    asked = launch({"adapter": "fake_engine:Fake", "score": "raise", "on": 2, "rank": 1},
                   placement=Placement(world_size=2, command=words), adapter="")  # fmt: skip
    score = pool.score(asked, request_of("a"))
    assert np.allclose(score.tensors(1)["selected_logprob"][0], -1.005)
    pids = [report.provenance["pid"] for report in score.builds]
    assert all(is_alive(pid) and os.getpgid(pid) == pid for pid in pids), "torchrun gives each rank its own group"
    with pytest.raises(WorkerError, match="rank 1 failed"):
        pool.score(asked, request_of("b"))
    assert pool.score(asked, request_of("c")).reused
    pool.close(kill=True)
    assert not any(is_alive(pid) for pid in pids)

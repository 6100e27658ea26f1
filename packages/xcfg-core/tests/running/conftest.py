"""Adapters that misbehave on purpose, written to a folder on PYTHONPATH, and the launches that use them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xcfg.identity.rollout import make_rollout, write_rollout
from xcfg.running.launch import LaunchSpec
from xcfg.running.pool import WorkerPool
from xcfg.schema.identity import CheckpointRef
from xcfg.schema.runtime import Fingerprints, Placement
from xcfg.schema.worker import PROTOCOL, ScoreRequest, WorkerSpec

ADAPTER = '''
import json, os, signal, subprocess, sys, time
from pathlib import Path
import numpy as np
from xcfg.schema.worker import BuildReport, RankRecord, ScoreReport

NAMES = ("RANK", "WORLD_SIZE", "MARKER", "XCFG_OLD", "MASTER_PORT")


class Fake:
    """Behaves as spec.options say: {"build": fault, "score": fault, "rank": which rank misbehaves}."""

    broken = False

    def build(self, spec, context):
        self.spec, self.context, self.count = spec, context, 0
        print("building rank", context.rank, "héllo ✓", flush=True)
        self.fault("build")
        options = spec.options
        world = options.get("claimed_world", context.world_size)
        rank = options.get("claimed_rank", context.rank)
        provenance = {
            "device": context.device, "rendezvous": context.rendezvous, "pid": os.getpid(), "argv": sys.argv,
            "env": {k: os.environ.get(k) for k in NAMES},
            "stdin": sys.stdin.read(), "odd": float("nan"), "torch": "torch" in sys.modules,
        }
        reports = [BuildReport(rank=rank, world_size=world, compute_dtype="float32", provenance=provenance)]
        for other in options.get("hosted", []):
            reports.append(BuildReport(rank=other, world_size=world))
        return reports if options.get("hosted") else reports[0]

    def score(self, request, rollout):
        self.count += 1
        self.fault("score", request)
        rank, world = self.context.rank, self.context.world_size
        total = rollout.manifest.token_count
        value = rollout.token_ids * -0.001 - rank + request.knobs.get("offset", 0.0)
        pairs = []
        for mine in [rank, *self.spec.options.get("hosted", [])]:
            record = RankRecord(
                rank=mine, world_size=world, role="replica", coordinates={}, ranges=((0, total),),
                parallelism="none", dtype="float32", padding_side="none", cache_mode="none",
                active_tokens=total)
            identifier = self.spec.options.get("claimed_request", request.id)
            counters = {"count": self.count}
            report = ScoreReport(request_id=identifier, rank=mine, record=record, counters=counters)
            pairs.append((report, {"selected_logprob": value.astype(np.float32), "active": rollout.active}))
        return pairs if len(pairs) > 1 else pairs[0]

    def generate(self, request, prompts):
        answers = [
            {"prompt_ids": prompt["token_ids"], "token_ids": [len(prompt["token_ids"]), 7], "logprobs": [-0.5, -1.5],
             "transforms": []}
            for prompt in prompts
        ]
        for answer in answers[1:]:
            answer.update(self.spec.options.get("answer", {}))
            answer.pop(self.spec.options.get("drop"), None)
        return answers[: self.spec.options.get("answers", len(answers))]

    def close(self):
        print("closed rank", self.context.rank, flush=True)
        if self.spec.options.get("close") == "hang":
            time.sleep(600)

    def fault(self, stage, request=None):
        fault = self.spec.options.get(stage)
        if isinstance(fault, dict):
            fault = fault.get(str(self.context.rank))
        elif self.context.rank != self.spec.options.get("rank", 0):
            return
        if fault is None:
            return
        if self.spec.options.get("on", self.count) != self.count:
            return
        exchange = Path(os.environ["XCFG_EXCHANGE"])
        if fault == "hang":
            print("about to hang", flush=True)
            time.sleep(600)
        elif fault == "spin":  # never gives the interpreter lock back, as some native calls do
            import re
            re.match(r"(a+)+$", "a" * 64 + "b")
        elif fault == "exit3":
            print("leaving now", flush=True)
            os._exit(3)
        elif fault == "exit0":
            os._exit(0)
        elif fault == "sysexit":
            sys.exit("a library called exit")
        elif fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "raise":
            raise ValueError("the engine said ünïcode no")
        elif fault == "unsupported":
            raise NotImplementedError("no such thing")
        elif fault == "identity":
            from xcfg.errors import IdentityError
            raise IdentityError("not the tokens")
        elif fault == "cuda":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        elif fault == "garbage":
            name = "ready-0.json" if stage == "build" else f"done-{request.id}-0.json"
            (exchange / name).write_text("{not json")
            time.sleep(600)
        elif fault == "swap":  # alters the tensors after they were reported
            import xcfg.running.exchange as files
            real = files.publish
            def publish(file, data, **more):
                sha = real(file, data, **more)
                if file.name.startswith("scores-"):
                    file.write_bytes(data[:-1] + b"!")
                return sha
            files.publish = publish
        elif fault == "noise":
            line = b"x" * 1023 + b"\\n"
            for _ in range(100 * 1024):
                os.write(1, line)
        elif fault == "children":
            code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
            one = subprocess.Popen([sys.executable, "-c", code])
            two = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
            Path(self.spec.options["pids"]).write_text(f"{os.getpid()} {one.pid} {two.pid}")
            time.sleep(0.3)
            if self.spec.options.get("then") == "hang":
                time.sleep(600)
            if self.spec.options.get("then") == "spin":
                import re
                re.match(r"(a+)+$", "a" * 64 + "b")


class Scorer:
    """Only scores; cannot sample."""

    def build(self, spec, context):
        return BuildReport(rank=context.rank, world_size=context.world_size)

    def score(self, request, rollout):
        return ScoreReport(request_id=request.id, rank=int(os.environ["RANK"])), {}

    def close(self):
        pass
'''


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.fixture
def is_alive() -> Callable[[int], bool]:
    return alive


@pytest.fixture
def wait_until() -> Callable[..., bool]:
    def wait(condition: Callable[[], bool], seconds: float = 3.0) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    return wait


@pytest.fixture(autouse=True)
def adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder on PYTHONPATH that holds the module `fake_engine`."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "fake_engine.py").write_text(ADAPTER, encoding="utf-8")
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{inherited}" if inherited else str(folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    return folder


@pytest.fixture
def rollout_folder(tmp_path: Path) -> Path:
    """Two sequences of 3 and 4 tokens, the first token of each inactive."""
    ids = np.array([5, 6, 7, 8, 9, 10, 11])
    active = np.array([0, 1, 1, 0, 1, 1, 1], dtype=bool)
    rollout = make_rollout(
        {
            "token_ids": ids,
            "offsets": np.array([0, 3, 7]),
            "active_mask": active,
            "attention_mask": np.ones(7, dtype=bool),
            "position_ids": np.array([0, 1, 2, 0, 1, 2, 3]),
            "selected_token_ids": ids,
            "segment": active.astype(np.int8),
            "weight_version": np.zeros(7, dtype=np.int32),
        },
        checkpoint=CheckpointRef(uri="builtin:none"),
    )
    return write_rollout(rollout, tmp_path / "rollout")


@pytest.fixture
def launch(rollout_folder: Path) -> Callable[..., LaunchSpec]:
    """make(options, placement=..., construction=..., fresh=..., adapter=...) -> LaunchSpec."""

    def make(
        options: dict[str, Any] | None = None,
        *,
        placement: Placement | None = None,
        construction: str = "c",
        side: str = "training",
        fresh: bool = False,
        adapter: str = "fake_engine:Fake",
    ) -> LaunchSpec:
        place = placement or Placement()
        spec = WorkerSpec(
            protocol=PROTOCOL,
            runtime="fake",
            adapter=adapter,
            side=side,
            knobs={},
            options=options or {},
            operators={},
            checkpoint="",
            checkpoint_uri="",
            rollout=str(rollout_folder),
            world_size=place.world_size,
            devices=place.devices,
        )
        prints = Fingerprints(construction=construction, distributed="d", process="p", build="b", bindings="o")
        return LaunchSpec(spec=spec, placement=place, fingerprints=prints, fresh=fresh)

    return make


@pytest.fixture
def events() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def pool(tmp_path: Path, events: list[dict[str, Any]]) -> Iterator[WorkerPool]:
    with WorkerPool(tmp_path / "scratch", build_timeout=20.0, score_timeout=20.0, on_event=events.append) as made:
        yield made


@pytest.fixture
def request_of() -> Callable[..., ScoreRequest]:
    def make(identifier: str = "one", **more: Any) -> ScoreRequest:
        return ScoreRequest(id=identifier, arm="training", **more)

    return make

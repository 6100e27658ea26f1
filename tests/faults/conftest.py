"""Shared by the fault tests: the command line as a person runs it, one frozen rollout, plugins that break one thing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xcfg
from xcfg.identity.rollout import make_rollout, read_rollout, write_rollout

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PLUGINS = HERE / "plugins"
MARK = "FAULT_TEST_MARK"
PROMPTS = ([1, 2, 3, 4, 5, 6], [30, 20, 10, 5], [11, 12, 13, 14], [100, 200, 300, 400, 500, 501], [7, 8, 9, 10, 11])
NEW_TOKENS = 24
BASELINE = {
    "batch.size": 3,
    "batch.padding_side": "right",
    "rollout.dtype": "float32",
    "training.compute_dtype": "float32",
}


@dataclass
class Done:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    mark: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        return json.loads(self.stdout)

    @property
    def statuses(self) -> dict[str, str]:
        """Label -> status."""
        return {case["label"]: case["status"] for case in self.document["cases"]}

    def case(self, label: str = "baseline") -> dict[str, Any]:
        """The summary of one case."""
        return next(case for case in self.document["cases"] if case["label"] == label)


@dataclass
class Running:
    """A command that runs, in a process group of its own as in a terminal."""

    process: subprocess.Popen[str]
    mark: str
    started: float = field(default_factory=time.monotonic)

    def signal(self, number: int) -> None:
        """Send a signal to the group, as Ctrl-C in a terminal does."""
        os.killpg(self.process.pid, number)

    def end(self, timeout: float = 240.0) -> Done:
        """Wait; a hang is killed and fails the test."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            pytest.fail(f"it hung for {timeout:g} s\n{err[-3000:]}")
        return Done(self.process.returncode, out, err, time.monotonic() - self.started, self.mark)


class Lab:
    """Commands, experiments and what they left; every process started here carries a mark in its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"  # a run that is killed cannot remove its own
        self.scratch.mkdir()
        self.python = sys.executable

    # --- commands -----------------------------------------------------------------------------------------

    def environment(self, plugins: tuple[Path | str, ...] = (), **extra: str) -> dict[str, str]:
        """The environment of a command: found plugins first on PYTHONPATH, one thread."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XCFG_", "FAULT_"))}
        places = [str(PLUGINS / item) if isinstance(item, str) else str(item) for item in plugins]
        cache = {"XCFG_CACHE": os.environ["XCFG_CACHE"]} if "XCFG_CACHE" in os.environ else {}
        return {
            **kept,
            **cache,
            "PYTHONPATH": os.pathsep.join(places),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.scratch),
            MARK: uuid.uuid4().hex,
            **extra,
        }

    def start(
        self, *arguments: object, plugins: tuple[Path | str, ...] = (), prefix: tuple[str, ...] = (), **extra: str
    ) -> Running:
        """Start `xcfg ARGUMENTS`."""
        environment = self.environment(plugins, **extra)
        words = [*prefix, self.python, "-m", "xcfg", *map(str, arguments)]
        return self._started(words, environment)

    def program(self, file: Path, *arguments: object, plugins: tuple[Path | str, ...] = (), **extra: str) -> Running:
        """Start a Python program of the test's own."""
        return self._started([self.python, str(file), *map(str, arguments)], self.environment(plugins, **extra))

    def _started(self, words: list[str], environment: dict[str, str]) -> Running:
        process = subprocess.Popen(
            words,
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return Running(process, environment[MARK])

    def xcfg(self, *arguments: object, timeout: float = 240.0, **more: Any) -> Done:
        """Run `xcfg ARGUMENTS` to its end; whatever the end, no traceback and no process may be left."""
        return self.checked(self.start(*arguments, **more).end(timeout))

    def run(self, experiment: Path, root: Path, *arguments: object, **more: Any) -> Done:
        """Run `xcfg run EXPERIMENT --json`."""
        return self.xcfg("run", experiment, "--output-root", root, "--json", *arguments, **more)

    def checked(self, done: Done) -> Done:
        """Return `done` after holding it to what every command promises."""
        assert "Traceback" not in done.stderr, done.stderr
        assert "Traceback" not in done.stdout
        assert self.survivors(done.mark) == []
        return done

    @staticmethod
    def verified(root: Path) -> None:
        """Hold everything under `root` against its seals and recompute it, as `xcfg verify` does."""
        assert [line for line in xcfg.verify(root).attempts if not line.ok and not line.unfinished] == []

    # --- processes ----------------------------------------------------------------------------------------

    def alive(self, mark: str) -> list[int]:
        """Processes that carry the mark, zombies left out."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
                    if state not in "ZX":
                        found.append(int(name))
        return found

    def survivors(self, mark: str, patience: float = 15.0) -> list[int]:
        """Processes that still carry the mark after some patience."""
        deadline = time.monotonic() + patience
        while (found := self.alive(mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    @staticmethod
    def wait_for(file: Path, running: Running, timeout: float = 120.0) -> str:
        """Wait until a worker has written `file`; return its text."""
        deadline = time.monotonic() + timeout
        while not (file.exists() and file.read_text()):
            assert running.process.poll() is None, running.process.communicate()
            assert time.monotonic() < deadline, f"{file.name} never appeared"
            time.sleep(0.02)
        return file.read_text()

    # --- experiments --------------------------------------------------------------------------------------

    def experiment(self, file: Path, rollout: Path, **changes: Any) -> Path:
        """Write an experiment over a frozen rollout: the baseline alone, no budget, one thread; `changes` on top."""
        sha256 = hashlib.sha256((rollout / "manifest.json").read_bytes()).hexdigest()
        document = {
            "schema_version": "cross_config.experiment_config.v2",
            "experiment_id": file.stem,
            "scenario_id": "faults",
            "identity": {"rollout": {"path": os.path.relpath(rollout, file.parent), "sha256": sha256}},
            "baseline": {**BASELINE, **changes.pop("baseline", {})},
            "controls": {"reference": False},
            "runtime_options": {"rollout": {"threads": 1}, "training": {"threads": 1}},
            **changes,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document))
        return file

    def smoke(self, file: Path, **changes: Any) -> Path:
        """Write the S0 scenario, with `changes`."""
        document = json.loads((ROOT / "examples/scenarios/s0.json").read_text())
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**document, "experiment_id": file.stem, **changes}))
        return file

    # --- what was stored ----------------------------------------------------------------------------------

    @staticmethod
    def attempt(root: Path, case: dict[str, Any], experiment: str = "") -> Path:
        """The folder of the attempt that a summary line speaks of."""
        folders = [root / experiment] if experiment else [item for item in root.iterdir() if item.is_dir()]
        return folders[0] / "cases" / case["case_id"] / case["attempt_id"]

    @staticmethod
    def json(file: Path) -> Any:
        return json.loads(file.read_text())

    @staticmethod
    def files(root: Path) -> dict[Path, str]:
        """Every published file -> SHA-256."""
        found = (path for path in root.rglob("*") if path.is_file() and ".tmp-" not in str(path))
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}

    @staticmethod
    def without_numbers(attempt: Path) -> None:
        """Hold an attempt to the promise that it holds no drift number anywhere."""
        comparison = json.loads((attempt / "comparison.json").read_text())
        assert comparison["edges"] == {} and comparison["threshold"] is None
        assert comparison["assessment"]["assessment"] == "NO_REFERENCE"
        assert {name for name, value in comparison["assessment"].items() if isinstance(value, float)} == set()
        assert not (attempt / "token_diffs.pt").exists()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="session")
def frozen(lab: Lab) -> Path:
    """One rollout, sampled by the real command; sequences 1 and 2 are equally long."""
    prompts = lab.folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"token_ids": ids}) + "\n" for ids in PROMPTS))
    words = ("--checkpoint", "builtin:tiny-qwen3-512", "--prompts", prompts, "--max-new-tokens", NEW_TOKENS)
    done = lab.xcfg("freeze", *words, "--output", lab.folder / "roll")
    assert done.code == 0, done.stderr
    return lab.folder / "roll"


@pytest.fixture(scope="session")
def silent(frozen: Path, lab: Lab) -> Path:
    """The same rollout without one active token."""
    rollout = read_rollout(frozen)
    tensors = {name: array for name, array in rollout.tensors.items() if name != "recorded_logprob"}
    tensors["active_mask"] = np.zeros_like(rollout.active)
    inactive = make_rollout(tensors, checkpoint=rollout.manifest.checkpoint, tokenizer=rollout.manifest.tokenizer)
    return write_rollout(inactive, lab.folder / "silent")


@dataclass
class Finished:
    """A run with its experiment and output root."""

    done: Done
    experiment: Path
    root: Path

    @property
    def attempt(self) -> Path:
        """The folder of the baseline's attempt."""
        return Lab.attempt(self.root, self.done.case())


@pytest.fixture(scope="session")
def background(request: pytest.FixtureRequest) -> Iterator[Callable[[dict[str, Callable[[], Any]]], dict[str, Future]]]:
    """Start named jobs, two at a time, as far as the collected tests ask for them with `needs(...)`."""
    wanted = {name for item in request.session.items for name in getattr(getattr(item, "function", None), "needs", ())}
    pool = ThreadPoolExecutor(2)
    yield lambda jobs: {name: pool.submit(job) for name, job in jobs.items() if name in wanted}
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def clean(lab: Lab, frozen: Path) -> Finished:
    """A real run that nothing disturbed: the baseline, another attention, two FSDP ranks."""
    interventions = [{"path": "training.attention_backend", "values": ["eager"]}]
    interventions += [{"path": "training.sharding", "values": ["fsdp"]}]
    experiment = lab.experiment(lab.folder / "clean.json", frozen, interventions=interventions)
    done = lab.run(experiment, lab.folder / "clean")
    assert set(done.statuses.values()) == {"PASS"}, done.stdout
    return Finished(done, experiment, lab.folder / "clean")


@pytest.fixture
def copied(clean: Finished, tmp_path: Path) -> Finished:
    """A copy of the clean run that a test may spoil; hard links are kept, and names within it are the same."""
    subprocess.run(["cp", "-a", str(clean.root), str(tmp_path / "runs")], check=True)
    return Finished(clean.done, clean.experiment, tmp_path / "runs")


@pytest.fixture
def reseal() -> Callable[[Path], None]:
    """reseal(folder): make COMPLETE say what the files are now, as somebody who wants to deceive would."""
    from xcfg.artifacts.seals import closed
    from xcfg.schema.attempt import CASE_SEAL, CaseSeal, ScoreSeal
    from xcfg.schema.codec import convert, evolve, pretty_json

    def make(folder: Path, **changes: Any) -> None:
        complete = folder / "COMPLETE"
        document = json.loads(complete.read_text())
        seal = convert(document, CaseSeal if document["schema_version"] == CASE_SEAL else ScoreSeal)
        digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in seal.files}
        overwrite(complete, pretty_json(closed(evolve(seal, files=digests, **changes))))

    return make


def overwrite(file: Path, data: bytes) -> None:
    """Put `data` into a read-only file under a new inode, so that hard links elsewhere keep the old bytes."""
    file.unlink()
    file.write_bytes(data)


@pytest.fixture
def replace() -> Callable[[Path, bytes], None]:
    return overwrite

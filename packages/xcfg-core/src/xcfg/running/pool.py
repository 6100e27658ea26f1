"""Keep engines alive between scores, never two where one must be, and let none outlive its use."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from xcfg.errors import ExecutionError, InterruptedRunError
from xcfg.running.forkserver import ForkStarter
from xcfg.running.launch import LaunchSpec, RawScore
from xcfg.running.process import resident_bytes, spawn
from xcfg.running.supervisor import BUILD_TIMEOUT, SCORE_TIMEOUT, Worker
from xcfg.schema.worker import BuildReport, ScoreRequest

Event = dict[str, Any]
log = logging.getLogger(__name__)


def ignore(_: Event) -> None:
    """Do nothing with an event."""


class _Held:
    """A living worker, the launch it was made from, and when it was last used."""

    def __init__(self, launch: LaunchSpec, worker: Worker, name: str) -> None:
        self.launch, self.worker, self.name = launch, worker, name
        self.used = time.monotonic()


class WorkerPool:
    """Scores in worker processes; a context manager that ends every one of them.

    scratch: folder for exchange folders and logs; they are kept, so that the caller can store the logs.
    max_alive: workers at most. memory_budget: resident bytes of all workers together at most (a worker that
    is not yet known counts as the largest seen); one worker always runs. Timeouts in seconds. on_event: told
    what happens, as a dict with `event` (worker_started, worker_ready, worker_reused, worker_closed,
    worker_failed, score_started, score_done); what it raises is logged. forkserver: fork CPU workers from a
    process that has imported torch and the adapter (forkserver.py).

    A build that failed is not tried again: every later score of that launch raises the same error at once.
    Not thread-safe: one caller at a time.
    """

    def __init__(
        self,
        scratch: Path,
        *,
        max_alive: int = 2,
        memory_budget: int | None = None,
        build_timeout: float = BUILD_TIMEOUT,
        score_timeout: float = SCORE_TIMEOUT,
        on_event: Callable[[Event], None] = ignore,
        forkserver: bool = False,
    ) -> None:
        """Keep the limits; starts nothing."""
        self.scratch = scratch
        self.max_alive = max(1, max_alive)
        self.memory_budget = memory_budget
        self.build_timeout, self.score_timeout = build_timeout, score_timeout
        self._on_event = on_event
        self._forks = ForkStarter(scratch / "forkserver") if forkserver else None
        self._held: dict[str, _Held] = {}
        self._resident: dict[str, int] = {}
        self._unbuilt: dict[str, ExecutionError] = {}
        self._count = 0

    def __enter__(self) -> WorkerPool:
        """Return the pool."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all workers; without the farewell after an error or an interruption."""
        self.close(kill=kind is not None)

    @property
    def alive(self) -> int:
        """Number of workers that are held."""
        return len(self._held)

    @property
    def keys(self) -> frozenset[str]:
        """The launch keys of the workers that are held."""
        return frozenset(self._held)

    def expect(self, launches: Iterable[LaunchSpec]) -> None:
        """Let the imports of engines to come run beside the first one's work; only with a fork server."""
        if self._forks is not None:
            for launch in launches:
                self._forks.expect(launch.placement, launch.spec.adapter)

    def score(
        self,
        launch: LaunchSpec,
        request: ScoreRequest,
        *,
        check: Callable[[tuple[BuildReport, ...]], None] | None = None,
    ) -> RawScore:
        """Score `request` in a worker for `launch`, which is built, reused or waited for.

        check: sees the build reports before the request is sent; what it raises ends this score, and the
        worker lives on.
        Raises LaunchError, ScoreTimeoutError, WorkerError, MissingRankError (with `logs`, see
        faults.WorkerFault) and InterruptedRunError. A failed worker is discarded unless it said that it can
        serve on.
        """
        try:
            return self._score(launch, request, check)
        except KeyboardInterrupt:
            self.close(kill=True)
            raise InterruptedRunError("interrupted while a worker was used", hint="All workers were ended.") from None
        except InterruptedRunError:
            self.close(kill=True)
            raise

    generate = score

    def close(self, *, kill: bool = False) -> None:
        """End all workers; kill: at once."""
        try:
            for key in list(self._held):
                self._end(key, "closed", kill=kill)
        finally:
            if self._forks is not None:
                self._forks.close()

    def _score(
        self,
        launch: LaunchSpec,
        request: ScoreRequest,
        check: Callable[[tuple[BuildReport, ...]], None] | None,
    ) -> RawScore:
        if launch.key in self._unbuilt:
            raise self._unbuilt[launch.key].with_traceback(None)
        held, reused = self._acquire(launch)
        worker, key = held.worker, launch.key
        try:
            if not worker.builds:
                self._build(held)
                self._emit("worker_ready", held, seconds=worker.build_seconds)
                self._weigh(held)
            if check is not None:
                held.used = time.monotonic()
                check(worker.builds)
            self._emit("score_started", held, request=request.id, arm=request.arm)
            started = time.perf_counter()
            reports = worker.score(request)
            seconds = time.perf_counter() - started
        except ExecutionError as error:
            if not getattr(error, "logs", None):  # a refusal of the caller's `check` knows no logs
                error.logs = worker.logs  # type: ignore[attr-defined]
            self._emit("worker_failed", held, error=error.message, usable=worker.alive)
            raise
        finally:
            if not worker.alive and key in self._held:
                self._end(key, "failed", kill=True)
        held.used = time.monotonic()
        self._weigh(held)
        self._emit("score_done", held, request=request.id, arm=request.arm, seconds=seconds, reused=reused)
        paths = {report.rank: path for report in reports if (path := worker.scores_path(report)) is not None}
        return RawScore(
            builds=worker.builds,
            reports=reports,
            paths={} if request.generate else paths,
            logs=worker.logs,
            seconds={"build": 0.0 if reused else worker.build_seconds, "score": seconds},
            reused=reused,
            generated=(
                {report.rank: worker.generated(report) for report in reports if report.tensors_sha256}
                if request.generate
                else {}
            ),
        )

    def _build(self, held: _Held) -> None:
        """Wait until the engine stands; one that does not is remembered, since each try costs as much as the first."""
        try:
            held.worker.wait_ready()
        except ExecutionError as error:
            self._unbuilt[held.launch.key] = error
            raise

    def _weigh(self, held: _Held) -> None:
        """Remember the most memory that a worker of this launch was seen with; only a budget asks."""
        if self.memory_budget is not None:
            size = resident_bytes(process.pid for process in held.worker.processes)
            self._resident[held.launch.key] = max(self._resident.get(held.launch.key, 0), size)

    def _acquire(self, launch: LaunchSpec) -> tuple[_Held, bool]:
        self._discard_dead()
        key = launch.key
        held = self._held.get(key)
        if held is not None and not (launch.fresh and held.worker.served):
            reused = held.worker.served > 0
            if reused:
                self._emit("worker_reused", held)
            return held, reused
        if held is not None:
            self._end(key, "fresh process wanted")
        self._make_room(launch)
        return self._start(launch), False

    def _make_room(self, launch: LaunchSpec) -> None:
        for key, held in list(self._held.items()):
            if held.launch.overlaps(launch):
                self._end(key, "its devices are needed")
        while self._held and (len(self._held) >= self.max_alive or not self._fits(launch)):
            oldest = min(self._held, key=lambda key: self._held[key].used)
            self._end(oldest, "least recently used")

    def _fits(self, launch: LaunchSpec) -> bool:
        if self.memory_budget is None:
            return True
        wanted = self._resident.get(launch.key, max(self._resident.values(), default=0))
        living = resident_bytes(item.pid for held in self._held.values() for item in held.worker.processes)
        return living + wanted <= self.memory_budget

    def _start(self, launch: LaunchSpec) -> _Held:
        self._count += 1
        name = f"worker-{self._count:04d}-{launch.spec.side}"
        worker = Worker(
            launch.spec,
            launch.placement,
            self.scratch / name,
            build_timeout=self.build_timeout,
            score_timeout=self.score_timeout,
            starter=self._forks or spawn,
        )
        held = _Held(launch, worker, name)
        worker.start()
        self._held[launch.key] = held
        self._emit("worker_started", held, pids=[item.pid for item in worker.processes])
        return held

    def _discard_dead(self) -> None:
        for key in [key for key, held in self._held.items() if held.worker.builds and not held.worker.alive]:
            self._end(key, "found dead", kill=True)

    def _end(self, key: str, reason: str, *, kill: bool = False) -> None:
        held = self._held.pop(key)
        try:
            held.worker.kill() if kill else held.worker.close()
        finally:
            self._emit("worker_closed", held, reason=reason)

    def _emit(self, event: str, held: _Held, **more: Any) -> None:
        spec = held.launch.spec
        record = {"event": event, "worker": held.name, "runtime": spec.runtime, "side": spec.side, **more}
        try:
            self._on_event(record)
        except Exception:
            log.exception("the observer of worker events failed")

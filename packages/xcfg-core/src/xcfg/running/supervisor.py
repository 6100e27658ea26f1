"""One engine, seen from outside: start its ranks, watch them, ask them, and leave nothing behind."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from xcfg.errors import ConfigError, InterruptedRunError, LaunchError, MissingRankError
from xcfg.plugin.operators import backend_meant
from xcfg.plugin.readback import operator_path
from xcfg.running import exchange as files
from xcfg.running.faults import (
    BuildFault,
    RankFault,
    ScoreFault,
    TimeoutFault,
    WorkerFault,
    make_fault,
)
from xcfg.running.process import Process, ask_for_stacks, describe_exit, end_groups, spawn
from xcfg.schema.codec import decode_json, evolve
from xcfg.schema.runtime import Placement
from xcfg.schema.worker import BuildReport, ScoreReport, ScoreRequest, WorkerSpec

BUILD_TIMEOUT = 900.0
SCORE_TIMEOUT = 900.0
FIRST_DELAY, LAST_DELAY = 0.0003, 0.02
FAULT_SECONDS = 0.2
SETTLE_SECONDS = 1.0
KILL_GRACE = 1.5
CLOSE_SECONDS = 10.0
STACK_SECONDS = 0.3
R = TypeVar("R", BuildReport, ScoreReport)
Starter = Callable[[Placement, Path, int, str], Process]
"""(placement, exchange folder, rank, rendezvous URL) -> a started process."""


class Worker:
    """The processes of one engine and the folder through which they are spoken to.

    Not thread-safe: one caller at a time. `exchange` must not exist; it is kept, with the logs, after the
    end.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        placement: Placement,
        exchange: Path,
        *,
        build_timeout: float = BUILD_TIMEOUT,
        score_timeout: float = SCORE_TIMEOUT,
        kill_grace: float = KILL_GRACE,
        close_timeout: float = CLOSE_SECONDS,
        starter: Starter = spawn,
    ) -> None:
        """Keep the limits, in seconds. starter: how a process is made."""
        self.spec = evolve(spec, world_size=placement.world_size)
        self.placement = placement
        self.exchange = exchange.absolute()
        self.build_timeout, self.score_timeout = build_timeout, score_timeout
        self.kill_grace, self.close_timeout = kill_grace, close_timeout
        self.processes: list[Process] = []
        self.builds: tuple[BuildReport, ...] = ()
        self.build_seconds = 0.0
        self.served = 0
        self.closed = False
        self._starter = starter
        self._started = self._wall = self._looked = 0.0
        self._ids: dict[str, int] = {}

    @property
    def logs(self) -> dict[str, Path]:
        """Log name -> file."""
        return {process.log.name: process.log for process in self.processes}

    @property
    def alive(self) -> bool:
        """Whether every process lives and the worker was not closed."""
        return not self.closed and all(process.ended() is None for process in self.processes)

    def start(self) -> None:
        """Make the folder and start the processes; does not wait for the engine."""
        self._started, self._wall = time.monotonic(), time.time()
        try:
            self.exchange.mkdir(parents=True, exist_ok=False)
            files.write_construct(self.exchange, self.spec)
            for rank in range(self.placement.processes):
                self.processes.append(self._starter(self.placement, self.exchange, rank, self._rendezvous()))
        except OSError as error:
            self.kill()
            raise make_fault(
                BuildFault,
                f"the worker of runtime {self.spec.runtime!r} cannot be started: {error}",
                logs=self.logs,
            ) from error
        except BaseException as error:
            self.kill()
            if isinstance(error, KeyboardInterrupt):
                raise self._interrupted() from None
            raise

    def wait_ready(self) -> tuple[BuildReport, ...]:
        """Return every rank's BuildReport once the engine stands; if it does not, kill and raise."""
        if self.builds:
            return self.builds
        gathering = files.Gathering(self.exchange, "ready-", BuildReport, self.placement.world_size, files.check_build)
        reports = self._await(gathering, BuildFault, self._started + self.build_timeout, self.build_timeout)
        if gathering.failed:
            error = self._reported(gathering.failed[0], BuildFault, usable=False)
            self.kill()
            raise error
        self.builds = tuple(self._settled(report) for report in reports)
        stamps = [(self.exchange / files.ready_file(report.rank)).stat().st_mtime for report in reports]
        self.build_seconds = max(0.0, max(stamps) - self._wall)
        return self.builds

    def score(self, request: ScoreRequest) -> tuple[ScoreReport, ...]:
        """Return every rank's ScoreReport; the columns lie in `scores_path(report)`, digest checked.

        After a reported error the worker stays usable if every rank answered and none called itself broken.
        """
        self.wait_ready()
        wire = self._wire_request(request)
        deadline = time.monotonic() + self.score_timeout
        try:
            files.write_request(self.exchange, wire)
        except OSError as refused:
            raise self._broke(files.ProtocolError(f"the exchange folder failed: {refused}"), ScoreFault) from None
        gathering = files.Gathering(
            self.exchange,
            f"done-{wire.id}-",
            ScoreReport,
            self.placement.world_size,
            files.check_score(wire.id),
        )
        reports = self._await(gathering, ScoreFault, deadline, self.score_timeout)
        self.served += 1
        if gathering.failed:
            usable = self.alive and not gathering.missing and not any(report.broken for report in gathering.failed)
            error = self._reported(gathering.failed[0], ScoreFault, usable=usable)
            if not usable:
                self.kill()
            raise error
        self._check_payloads(wire, reports)
        return tuple(self._settled(report) for report in reports)

    def scores_path(self, report: ScoreReport) -> Path | None:
        """Return where the columns of one rank lie; None for a rank without tokens."""
        if not report.tensors_sha256:
            return None
        return self.exchange / files.scores_file(report.request_id, report.rank)

    def generated(self, report: ScoreReport) -> list[dict[str, Any]]:
        """Return what one rank sampled: per prompt an answer of plugin.protocols.Generator."""
        name = files.generated_file(report.request_id, report.rank)
        try:
            data = files.read_payload(self.exchange, name, report.tensors_sha256, report.rank)
            return decode_json(data, list[dict[str, Any]], source=name)
        except files.ProtocolError as error:
            raise self._broke(error, ScoreFault) from None
        except ConfigError as error:
            raise self._broke(files.ProtocolError(str(error), rank=report.rank), ScoreFault) from None

    def close(self) -> None:
        """Ask the ranks to leave, wait, and end those that do not."""
        if self.closed:
            return
        try:
            if self.builds and self.alive:
                with contextlib.suppress(OSError):
                    files.publish(self.exchange / files.STOP, b"", replace=True)
                deadline = time.monotonic() + self.close_timeout
                while time.monotonic() < deadline and any(item.ended() is None for item in self.processes):
                    time.sleep(0.005)
        finally:
            self.kill()

    def kill(self) -> None:
        """End all process groups of this worker now; safe to call twice."""
        if self.closed:
            return
        self.closed = True
        end_groups(self.processes, self.exchange, grace=self.kill_grace)
        if self._odd_path():
            shutil.rmtree(self._short_folder(), ignore_errors=True)

    def _settled(self, report: R) -> R:
        """Return the report with every operator materialised as its binding says, whatever a rank wrote."""
        meant = {}
        for name, binding in self.spec.operators.items():
            path = operator_path(name)
            meant[path] = backend_meant(binding, self.spec.knobs.get(path, binding.requested))
        found = (
            evolve(item, materialized=meant[item.path]) if item.path in meant else item for item in report.applications
        )
        return evolve(report, applications=tuple(found))

    def _wire_request(self, request: ScoreRequest) -> ScoreRequest:
        """A request that is asked twice gets another name on the wire, so that no answer serves for two."""
        count = self._ids[request.id] = self._ids.get(request.id, 0) + 1
        return request if count == 1 else evolve(request, id=f"{request.id}.again-{count}")

    def _odd_path(self) -> bool:
        return any(character in str(self.exchange) for character in "?#")

    def _short_folder(self) -> Path:
        return Path(tempfile.gettempdir()) / f"xcfg-{hashlib.sha256(str(self.exchange).encode()).hexdigest()[:16]}"

    def _rendezvous(self) -> str:
        """A `file://` URL; torch takes the path literally, but a `?` or `#` would end it."""
        if not self._odd_path():
            return f"file://{self.exchange}/rendezvous"
        self._short_folder().mkdir(mode=0o700, exist_ok=True)
        return f"file://{self._short_folder()}/rendezvous"

    def _await(
        self, gathering: files.Gathering[R], kind: type[WorkerFault], deadline: float, limit: float
    ) -> tuple[R, ...]:
        """Wait for every rank; a sign that one will not come raises, a report with an error ends the wait."""
        try:
            self._poll(gathering, kind, deadline, limit)
        except files.ProtocolError as error:
            raise self._broke(error, kind) from None
        except MissingRankError as error:
            if isinstance(error, WorkerFault):
                raise
            raise self._broke(files.ProtocolError(error.message, hint=error.hint), RankFault) from None
        except KeyboardInterrupt:
            self.kill()
            raise self._interrupted() from None
        except OSError as error:
            raise self._broke(files.ProtocolError(f"the exchange folder failed: {error}"), kind) from None
        return tuple(gathering.reports[rank] for rank in sorted(gathering.reports))

    def _poll(self, gathering: files.Gathering[R], kind: type[WorkerFault], deadline: float, limit: float) -> None:
        delay, settle = FIRST_DELAY, float("inf")
        while True:
            ended = {item.rank: code for item in self.processes if (code := item.ended()) is not None}
            if gathering.poll():
                return
            now = time.monotonic()
            if gathering.failed:
                settle = min(settle, now + SETTLE_SECONDS)
                if ended or now > settle:
                    return
            else:
                self._check_alive(gathering, ended, kind)
            if now > deadline:
                raise self._late(gathering, kind, limit)
            time.sleep(delay)
            delay = min(delay * 1.2, LAST_DELAY)

    def _check_alive(self, gathering: files.Gathering[R], ended: dict[int, int], kind: type[WorkerFault]) -> None:
        if ended or time.monotonic() - self._looked > FAULT_SECONDS:
            self._looked = time.monotonic()
            for report in files.read_faults(self.exchange):
                raise self._broke(files.ProtocolError(report.error, rank=report.rank), RankFault)
        silent = self._silent(gathering, ended)
        if silent:
            ranks = ", ".join(map(str, silent))
            text = f"rank {ranks} of {gathering.world_size} never reported {self._doing(kind)}"
            hint = "Its process has left with exit code 0, or has reported for other ranks only."
            raise self._broke(files.ProtocolError(text, rank=silent[0], hint=hint), RankFault)
        if ended:
            rank = min(ended, key=lambda item: (ended[item] == 0, item))
            text = f"rank {rank} {describe_exit(ended[rank])} {self._doing(kind)}"
            raise self._broke(files.ProtocolError(text, rank=rank), kind, error_kind="exit")

    def _silent(self, gathering: files.Gathering[R], ended: dict[int, int]) -> list[int]:
        """Ranks that cannot report any more although nothing crashed."""
        if any(ended.values()):
            return []
        if self.placement.command:
            return gathering.missing if len(ended) == len(self.processes) else []
        if set(range(self.placement.processes)) <= set(gathering.reports):
            return gathering.missing
        return [rank for rank in gathering.missing if rank in ended]

    def _doing(self, kind: type[WorkerFault]) -> str:
        what = "building" if issubclass(kind, LaunchError) else "scoring with"
        return f"while {what} runtime {self.spec.runtime!r} ({self.spec.side})"

    def _late(self, gathering: files.Gathering[R], kind: type[WorkerFault], limit: float) -> WorkerFault:
        missing = gathering.missing
        ranks = f"rank {', '.join(map(str, missing))} of {gathering.world_size}"
        if self.placement.command and gathering.reports:
            return self._broke(
                files.ProtocolError(f"{ranks} did not report within {limit:g} s", rank=missing[0]), RankFault
            )
        if not self.placement.command:
            for process in self.processes:
                ask_for_stacks(process)
            time.sleep(STACK_SECONDS)
        error = files.ProtocolError(
            f"{ranks} gave no answer within {limit:g} s {self._doing(kind)}",
            rank=missing[0],
            hint="Raise --timeout-seconds if the engine needs longer.",
        )
        return self._broke(error, TimeoutFault, error_kind="timeout")

    def _reported(self, report: BuildReport | ScoreReport, kind: type[WorkerFault], *, usable: bool) -> WorkerFault:
        return make_fault(
            kind,
            f"rank {report.rank} failed {self._doing(kind)}: {report.error}",
            logs=self.logs,
            rank=report.rank,
            error_kind=report.error_kind or "engine",
            traceback=report.traceback,
            worker_usable=usable,
        )

    def _interrupted(self) -> InterruptedRunError:
        return InterruptedRunError(
            f"interrupted while a worker of runtime {self.spec.runtime!r} was busy",
            hint="Its processes were ended.",
        )

    def _broke(
        self, error: files.ProtocolError, kind: type[WorkerFault], *, error_kind: str = "protocol"
    ) -> WorkerFault:
        """Kill the worker; return the error to raise, with the log as the ranks left it."""
        self.kill()
        return make_fault(kind, error.message, logs=self.logs, rank=error.rank, hint=error.hint, error_kind=error_kind)

    def _check_payloads(self, request: ScoreRequest, reports: tuple[ScoreReport, ...]) -> None:
        try:
            for report in reports:
                if report.tensors_sha256:
                    make = files.generated_file if request.generate else files.scores_file
                    files.read_payload(self.exchange, make(request.id, report.rank), report.tensors_sha256, report.rank)
        except files.ProtocolError as error:
            raise self._broke(error, ScoreFault) from None

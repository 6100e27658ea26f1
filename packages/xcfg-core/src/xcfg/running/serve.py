"""The worker side of the protocol: build one engine, answer requests until told to stop.

`python -m xcfg.running.serve` is what the supervisor starts for each rank. A program of the user's own
(runtime `external`) that runs under torchrun calls `serve(adapter, exchange)` and is done. Environment:
XCFG_EXCHANGE, RANK, WORLD_SIZE, LOCAL_RANK.

An adapter that hosts several ranks in one process may return a list of BuildReports from `build`, and a list
of (ScoreReport, columns) pairs from `score`: one for each rank.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from xcfg.binding.determinism import KEY as DETERMINISM
from xcfg.binding.determinism import read_determinism
from xcfg.errors import IdentityError, XcfgError
from xcfg.plugin._resolve import resolve
from xcfg.plugin.protocols import Generator, RankContext, RuntimeAdapter
from xcfg.running import exchange as files
from xcfg.running.generated import check_answers
from xcfg.running.guard import start_time
from xcfg.running.guard_link import tie_to_supervisor
from xcfg.schema.codec import evolve, pretty_json
from xcfg.schema.worker import PROTOCOL, BuildReport, ScoreReport, ScoreRequest, WorkerSpec

if TYPE_CHECKING:
    from xcfg.identity.rollout import Rollout

FIRST_DELAY, LAST_DELAY = 0.0003, 0.02
FRESH_SECONDS, LIST_SECONDS = 0.05, 1.0
MAX_ERROR_CHARACTERS = 8000
_STICKY = ("CUDA error", "NCCL error", "device-side assert", "unspecified launch failure")


def serve(adapter: RuntimeAdapter | Generator, exchange: Path) -> int:
    """Serve one rank with `adapter` in the folder `exchange`; return the exit code for the process."""
    tie_to_supervisor()
    return _Rank(exchange).run(lambda _: adapter)


def main() -> int:
    """Entry point of `python -m xcfg.running.serve`."""
    folder = os.environ.get("XCFG_EXCHANGE")
    if not folder:
        print("XCFG_EXCHANGE is not set; `xcfg run` starts this program", file=sys.stderr)
        return 2
    tie_to_supervisor()
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)
    return _Rank(Path(folder)).run(_make_adapter)


def _make_adapter(spec: WorkerSpec) -> Any:
    name = spec.adapter or str(spec.options.get("adapter", ""))
    return resolve(name)()


def error_kind(error: BaseException) -> str:
    """Return `unsupported`, `identity`, `out_of_memory`, another kind of xcfg.errors, or `engine`.

    An exception may name its own kind in an attribute `error_kind`.
    """
    own = getattr(error, "error_kind", None) or (error.kind if isinstance(error, XcfgError) else None)
    if isinstance(own, str):
        return own
    if isinstance(error, NotImplementedError):
        return "unsupported"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out_of_memory"
    return "engine"


def _fault(error: BaseException) -> dict[str, Any]:
    text = str(error).strip()
    name = type(error).__name__
    message = text if isinstance(error, XcfgError) and text else f"{name}: {text}" if text else name
    trace = "".join(traceback.format_exception(error))
    return {
        "error": message[:MAX_ERROR_CHARACTERS],
        "error_kind": error_kind(error),
        "traceback": trace[-MAX_ERROR_CHARACTERS:],
    }


class _Rank:
    """One process of a worker: its place, its engine, its loop."""

    def __init__(self, exchange: Path) -> None:
        self.exchange = exchange
        self.rank = int(os.environ.get("RANK", "0"))
        self.adapter: Any = None
        self.spec: WorkerSpec | None = None
        self._rollout: Rollout | None = None
        self._hosted: tuple[int, ...] = ()

    def run(self, make: Callable[[WorkerSpec], Any]) -> int:
        try:
            self._claim()
            built = self._build(make)
            return self._loop() if built else 1
        except FileExistsError as error:
            self._refused(error)
            return 1
        except FileNotFoundError as error:
            if self.exchange.is_dir():
                raise
            print(f"the exchange folder is gone: {error}", file=sys.stderr)
            return 1
        finally:
            self._close()

    def _claim(self) -> None:
        files.publish(self.exchange / files.claim_file(self.rank), str(os.getpid()).encode())

    def _refused(self, error: FileExistsError) -> None:
        report = BuildReport(
            rank=self.rank,
            world_size=self.spec.world_size if self.spec else 0,
            error=f"another process answers for rank {self.rank} already",
            error_kind="duplicate_rank",
            traceback=str(error),
        )
        with contextlib.suppress(OSError):
            files.publish(self.exchange / files.fault_file(os.getpid()), pretty_json(report))

    def _context(self, spec: WorkerSpec) -> RankContext:
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        scratch = self.exchange / f"scratch-{self.rank}"
        scratch.mkdir(exist_ok=True)
        return RankContext(
            rank=self.rank,
            world_size=spec.world_size,
            device=spec.devices[local % len(spec.devices)] if spec.devices else "cpu",
            scratch=scratch,
            rendezvous=os.environ.get("XCFG_RENDEZVOUS", f"file://{self.exchange / 'rendezvous'}"),
        )

    def _build(self, make: Callable[[WorkerSpec], Any]) -> bool:
        started = time.perf_counter()
        try:
            self.spec = spec = files.read_construct(self.exchange)
            if spec.protocol != PROTOCOL:
                raise NotImplementedError(f"protocol {spec.protocol!r}; this worker speaks {PROTOCOL!r}")
            self.adapter = make(spec)
            reports = self._reports_of_build(spec)
            self._hosted = tuple(report.rank for report in reports)
            encoded = {report.rank: (report, files.encode_report(self._timed(report, started))) for report in reports}
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any fault of an engine is a report
            traceback.print_exception(error)
            world = self.spec.world_size if self.spec else 0
            report = BuildReport(
                rank=self.rank, world_size=world, seconds=time.perf_counter() - started, **_fault(error)
            )
            encoded = {self.rank: (report, pretty_json(report))}
        for rank in self._own_last(encoded):
            files.publish(self.exchange / files.ready_file(rank), encoded[rank][1])
        return not any(report.error for report, _ in encoded.values())

    def _reports_of_build(self, spec: WorkerSpec) -> list[BuildReport]:
        build = getattr(self.adapter, "build", None)
        if build is None:
            return [BuildReport(rank=self.rank, world_size=spec.world_size)]
        result = build(spec, self._context(spec))
        return list(result) if isinstance(result, (list, tuple)) else [result]

    def _timed(self, report: BuildReport, started: float) -> BuildReport:
        process = {"pid": os.getpid(), "started": start_time(os.getpid())}
        return evolve(
            report,
            seconds=report.seconds or time.perf_counter() - started,
            provenance={**report.provenance, "process": process},
        )

    def _own_last(self, ranks: Any) -> list[int]:
        """Order ranks so that this process's own report says that all of its ranks have reported."""
        return sorted(ranks, key=lambda rank: (rank == self.rank, rank))

    def _loop(self) -> int:
        served: set[str] = set()
        delay, listed = FIRST_DELAY, 0.0
        while True:
            now = time.time()
            # Listing costs more with every request; an old and unchanged folder has nothing new. Its time
            # stamp is as coarse as the kernel's clock, so a recent one proves nothing.
            if now - self.exchange.stat().st_mtime < FRESH_SECONDS or now - listed > LIST_SECONDS:
                listed, names = now, os.listdir(self.exchange)
                if files.STOP in names:
                    return 0
                waiting = sorted(name for name in names if name.startswith("request-") and name not in served)
                for name in waiting:
                    served.add(name)
                    self._answer(name)
                if waiting:
                    delay = FIRST_DELAY
                    continue
            time.sleep(delay)
            delay = min(delay * 1.25, LAST_DELAY)

    def _answer(self, name: str) -> None:
        started = time.perf_counter()
        identifier = name.removeprefix("request-").removesuffix(".json")
        try:
            request = files.read_request(self.exchange, name)
            answers = self._generate(request) if request.generate else self._score(request)
            encoded = {
                report.rank: files.encode_report(
                    evolve(report, seconds=report.seconds or time.perf_counter() - started)
                )
                for report in answers
            }
        except FileExistsError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any fault of an engine is a report
            traceback.print_exception(error)
            report = ScoreReport(
                request_id=identifier,
                rank=self.rank,
                seconds=time.perf_counter() - started,
                broken=self._broken(error),
                **_fault(error),
            )
            encoded = {self.rank: pretty_json(report)}
        for rank in self._own_last(encoded):
            files.publish(self.exchange / files.done_file(identifier, rank), encoded[rank])

    def _score(self, request: ScoreRequest) -> list[ScoreReport]:
        result = self.adapter.score(request, self._frozen())
        pairs = result if isinstance(result, list) else [result]
        flags = {DETERMINISM: read_determinism()}  # an engine in a process of its own has told its own
        told = [(evolve(report, mechanism={**flags, **report.mechanism}), columns) for report, columns in pairs]
        return [self._store(request, report, columns) for report, columns in told]

    def _store(self, request: ScoreRequest, report: ScoreReport, columns: dict[str, Any]) -> ScoreReport:
        if not columns:
            return evolve(report, tensors_sha256="")
        from safetensors.numpy import save

        name = files.scores_file(request.id, report.rank)
        sha256 = files.publish(self.exchange / name, save({key: _array(value) for key, value in columns.items()}))
        return evolve(report, tensors_sha256=sha256)

    def _generate(self, request: ScoreRequest) -> list[ScoreReport]:
        if not isinstance(self.adapter, Generator):
            raise NotImplementedError(f"the adapter {type(self.adapter).__name__!r} cannot sample")
        prompts = request.generate.get("prompts")
        if not isinstance(prompts, list) or not prompts:
            raise IdentityError("the request has no prompts to continue", hint="Put them in generate['prompts'].")
        answers = self.adapter.generate(request, prompts)
        check_answers(answers, prompts, request.generate)
        sha256 = files.publish(self.exchange / files.generated_file(request.id, self.rank), pretty_json(answers))
        own = ScoreReport(request_id=request.id, rank=self.rank, tensors_sha256=sha256)
        return [own, *(ScoreReport(request_id=request.id, rank=rank) for rank in self._hosted if rank != self.rank)]

    def _frozen(self) -> Rollout:
        if self._rollout is None:
            from xcfg.identity.rollout import read_rollout

            if self.spec is None or not self.spec.rollout:
                raise IdentityError("this worker was built without a frozen rollout, so it has nothing to score")
            self._rollout = read_rollout(Path(self.spec.rollout))
        return self._rollout

    def _broken(self, error: BaseException) -> bool:
        """A device error is sticky: every later call in this process fails or, worse, does not."""
        return bool(getattr(self.adapter, "broken", False)) or any(text in str(error) for text in _STICKY)

    def _close(self) -> None:
        adapter, self.adapter = self.adapter, None
        close = getattr(adapter, "close", None)
        if close is None:
            return
        try:
            close()
        except Exception as error:  # noqa: BLE001 - nothing is scored any more; the log says why
            traceback.print_exception(error)


def _array(value: Any) -> Any:
    """Return a torch tensor or an array as a contiguous numpy array of the same dtype."""
    import numpy as np

    return np.ascontiguousarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def leave(code: int) -> NoReturn:
    """End this process after its exit handlers, without the teardown of every module (1.5 s with torch).

    `adapter.close()` has released the engine by now, and the supervisor ends what is left of the group.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())

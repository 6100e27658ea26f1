"""The files of the worker protocol: names, whole-or-nothing writes, strict reads, and who has reported.

Used by both ends. Nothing here starts a process; nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from xcfg.errors import ConfigError, MissingRankError, UsageError
from xcfg.schema.codec import convert, decode_json, evolve, plain, pretty_json, read_strict
from xcfg.schema.worker import BuildReport, ScoreReport, ScoreRequest, WorkerSpec

CONSTRUCT, STOP = "construct.json", "stop"
_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
Report = TypeVar("Report", BuildReport, ScoreReport)


class ProtocolError(Exception):
    """A rank broke the protocol; the supervisor turns this into an ExecutionError with the rank's log."""

    def __init__(self, message: str, *, rank: int | None = None, hint: str = "") -> None:
        """Keep what was wrong, which rank wrote it and the detail."""
        super().__init__(message)
        self.message, self.rank, self.hint = message, rank, hint


def ready_file(rank: int) -> str:
    """Name of the BuildReport of one rank."""
    return f"ready-{rank}.json"


def claim_file(rank: int) -> str:
    """Name of the file by which a process takes a rank for itself, so that no two answer for it."""
    return f"claim-{rank}"


def fault_file(pid: int) -> str:
    """Name of the BuildReport of a process that may not write under a rank's name."""
    return f"fault-{pid}.json"


def request_file(identifier: str) -> str:
    """Name of one ScoreRequest."""
    return f"request-{identifier}.json"


def scores_file(identifier: str, rank: int) -> str:
    """Name of the flat columns of one rank."""
    return f"scores-{identifier}-{rank}.safetensors"


def done_file(identifier: str, rank: int) -> str:
    """Name of the ScoreReport of one rank."""
    return f"done-{identifier}-{rank}.json"


def generated_file(identifier: str, rank: int) -> str:
    """Name of the sampled continuations of one rank: a JSON list, one object per prompt."""
    return f"generated-{identifier}-{rank}.json"


def check_id(identifier: str) -> str:
    """Return `identifier` if it can stand in a file name; UsageError if not."""
    if not _SAFE_ID.fullmatch(identifier):
        raise UsageError(
            f"the request id {identifier!r} cannot stand in a file name",
            hint="Use 1 to 128 letters, digits, dots, dashes and underscores, the first no sign.",
        )
    return identifier


def publish(file: Path, data: bytes, *, replace: bool = False) -> str:
    """Write `data` so that `file` appears whole; return its SHA-256.

    Without `replace` an existing file is an error (FileExistsError): two processes answered for one rank.
    """
    temporary = file.with_name(f".tmp-{os.getpid()}-{file.name}")
    temporary.write_bytes(data)
    if replace:
        temporary.replace(file)
        return hashlib.sha256(data).hexdigest()
    try:
        os.link(temporary, file)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if file.exists():
            raise FileExistsError(f"{file.name} is there already") from None
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return hashlib.sha256(data).hexdigest()


def finite(value: Any) -> Any:
    """Return plain JSON values with every NaN and infinity as its name, since JSON has none of them."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def encode_report(report: BuildReport | ScoreReport) -> bytes:
    """Return a report as JSON that its reader will accept; ConfigError or TypeError names what is not.

    A non-finite number becomes `"nan"`, `"inf"` or `"-inf"` in free-form fields and null in `numeric_effect`.
    """
    applications = tuple(
        evolve(item, numeric_effect=None)
        if item.numeric_effect is not None and not math.isfinite(item.numeric_effect)
        else item
        for item in report.applications
    )
    document = finite(plain(evolve(report, applications=applications)))
    convert(document, type(report), source="report")
    return pretty_json(document)


def write_construct(exchange: Path, spec: WorkerSpec) -> None:
    """Write construct.json."""
    publish(exchange / CONSTRUCT, pretty_json(spec))


def read_construct(exchange: Path) -> WorkerSpec:
    """Return the WorkerSpec of this exchange folder; ConfigError when there is none."""
    return convert(read_strict(exchange / CONSTRUCT), WorkerSpec, source=CONSTRUCT)


def write_request(exchange: Path, request: ScoreRequest) -> None:
    """Write one request under its id."""
    publish(exchange / request_file(check_id(request.id)), pretty_json(request))


def read_request(exchange: Path, name: str) -> ScoreRequest:
    """Return the request in file `name`; ConfigError when malformed."""
    return convert(read_strict(exchange / name), ScoreRequest, source=name)


def read_payload(exchange: Path, name: str, sha256: str, rank: int) -> bytes:
    """Return the bytes of a scores file after checking the digest that the rank reported."""
    try:
        data = (exchange / name).read_bytes()
    except OSError as error:
        raise ProtocolError(
            f"rank {rank} reported {name!r}, which cannot be read: {error.strerror}", rank=rank
        ) from None
    actual = hashlib.sha256(data).hexdigest()
    if actual != sha256:
        raise ProtocolError(
            f"{name!r} is not the file that rank {rank} reported",
            rank=rank,
            hint=f"SHA-256 {actual}, reported {sha256}.",
        )
    return data


def check_build(report: BuildReport, world_size: int) -> None:
    """A rank that believes in another world did not join this one."""
    _check_world(report.rank, report.world_size, world_size)


def check_score(identifier: str) -> Callable[[ScoreReport, int], None]:
    """Return the check of one request's reports: right request, right world."""

    def check(report: ScoreReport, world_size: int) -> None:
        if report.request_id != identifier:
            raise ProtocolError(
                f"rank {report.rank} answered request {report.request_id!r} where {identifier!r} was asked",
                rank=report.rank,
            )
        if report.record is not None:
            if report.record.rank != report.rank:
                raise MissingRankError(
                    f"the report of rank {report.rank} holds the record of rank {report.record.rank}"
                )
            _check_world(report.rank, report.record.world_size, world_size)

    return check


def _check_world(rank: int, actual: int, expected: int) -> None:
    if actual != expected:
        raise MissingRankError(
            f"rank {rank} runs in a world of {actual} where {expected} ranks must report",
            hint="The placement's world_size and what the engine formed must be the same number.",
        )


@dataclass
class Gathering(Generic[Report]):
    """The reports of one round: `prefix` + rank + `.json`, one for every rank of the world, no more.

    kind: BuildReport or ScoreReport. check: what each report must satisfy beside its rank.
    """

    exchange: Path
    prefix: str
    kind: type[Report]
    world_size: int
    check: Callable[[Report, int], None]
    reports: dict[int, Report] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        """Ranks that have not reported."""
        return [rank for rank in range(self.world_size) if rank not in self.reports]

    @property
    def failed(self) -> list[Report]:
        """Reports with an error, lowest rank first."""
        return [self.reports[rank] for rank in sorted(self.reports) if self.reports[rank].error]

    def poll(self) -> bool:
        """Read what has appeared; say whether every rank has reported.

        Raises ProtocolError (malformed report) and MissingRankError (a rank twice, or one beyond the world).
        """
        for rank in self.missing:
            file = self.exchange / f"{self.prefix}{rank}.json"
            if file.exists():
                self.reports[rank] = self._read(file, rank)
        if self.missing:
            return False
        self._refuse_strangers()
        return True

    def _read(self, file: Path, rank: int) -> Report:
        try:
            report = decode_json(file.read_bytes(), self.kind, source=file.name)
        except (ConfigError, OSError) as error:
            raise ProtocolError(f"the report of rank {rank} cannot be read: {error}", rank=rank) from None
        if report.rank != rank:
            raise MissingRankError(
                f"rank {report.rank} reported twice: {file.name!r} is also by rank {report.rank}",
                hint=f"Rank {rank} has no report of its own. Each process must use the RANK it was given.",
            )
        if not report.error:
            self.check(report, self.world_size)
        return report

    def _refuse_strangers(self) -> None:
        expected = {f"{self.prefix}{rank}.json" for rank in range(self.world_size)}
        for name in sorted(os.listdir(self.exchange)):
            if name.startswith(self.prefix) and name.endswith(".json") and name not in expected:
                rank = name.removeprefix(self.prefix).removesuffix(".json")
                if rank.isdigit():
                    raise MissingRankError(f"rank {rank} reported in a world of {self.world_size}")


def read_faults(exchange: Path) -> list[BuildReport]:
    """Return what processes said that were refused a rank: two of them claimed the same one.

    Raises ProtocolError for a file that no process of ours wrote.
    """
    names = [name for name in os.listdir(exchange) if name.startswith("fault-") and name.endswith(".json")]
    try:
        return [decode_json((exchange / name).read_bytes(), BuildReport, source=name) for name in sorted(names)]
    except ConfigError as error:
        raise ProtocolError(f"a fault report cannot be read: {error}") from None

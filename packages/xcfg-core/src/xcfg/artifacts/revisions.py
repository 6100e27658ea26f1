"""experiment*.json and plan*.jsonl: what was asked for, in revisions.

experiment-N.json is an envelope {schema_version, revision, experiment, experiment_digest, identity,
plan_sha256, seal}; plan-N.jsonl holds one canonical JSON object with a `case_id` per line, and the SHA-256 of
a line is what a case's seal names. The envelope is published first, so that an identity is pinned before
anything is sealed under it; a revision counts once its plan is there too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcfg.artifacts.atomic import Writer
from xcfg.artifacts.layout import is_component, is_digest
from xcfg.artifacts.reading import listing, read_bounded
from xcfg.errors import ArtifactError, ConfigError
from xcfg.schema.attempt import EXPERIMENT_RECORD, ExperimentRecord
from xcfg.schema.codec import canonical_json, convert, digest, parse_strict, plain, pretty_json

MAX_PLAN = 512 * 1024 * 1024
_FILES = re.compile(r"(experiment|plan)(-[0-9]+)?\.jsonl?")
_NAME = re.compile(r"experiment(?:-([2-9]|[1-9][0-9]{1,6}))?\.json")


@dataclass(frozen=True)
class Revision:
    """One revision: its number, both files, the envelope, and per case id the digest of its plan line."""

    number: int
    path: Path
    plan_path: Path
    record: ExperimentRecord
    lines: Mapping[str, str]

    @property
    def experiment_digest(self) -> str:
        """What CaseSeal.experiment names."""
        return self.record.experiment_digest

    def plan_line(self, case_id: str) -> str:
        """Return the digest of the plan line of `case_id` (CaseSeal.plan_line); ArtifactError without."""
        try:
            return self.lines[case_id]
        except KeyError:
            raise ArtifactError(
                f"case {case_id!r} is not in {self.plan_path.name}", hint=f"It has {len(self.lines)} cases."
            ) from None

    def plan(self) -> list[dict[str, Any]]:
        """Return the plan lines, checked against the envelope again."""
        return [line for line, _ in _plan_lines(_read_plan(self.plan_path, self.record), self.plan_path.name)]


@dataclass(frozen=True)
class Scan:
    """What lies in an experiment folder: whole revisions, envelopes without a plan yet, faults by file."""

    whole: tuple[Revision, ...]
    pending: Mapping[int, ExperimentRecord]
    faults: Mapping[str, str]

    @property
    def records(self) -> dict[int, ExperimentRecord]:
        """Every readable envelope by revision number."""
        return {**self.pending, **{revision.number: revision.record for revision in self.whole}}


def file_names(number: int) -> tuple[str, str]:
    """Return the names of the envelope and of the plan of revision `number`, counted from 1."""
    suffix = "" if number == 1 else f"-{number}"
    return f"experiment{suffix}.json", f"plan{suffix}.jsonl"


def revision_number(name: str) -> int | None:
    """Return the revision of an envelope's file name, or None when it is none."""
    match = _NAME.fullmatch(name)
    return int(match.group(1) or 1) if match else None


def scan(folder: Path) -> Scan:
    """Read every revision in `folder`; what cannot be trusted is a fault, never a revision."""
    names = listing(folder)
    numbers = sorted(number for name in names if (number := revision_number(name)) is not None)
    whole: list[Revision] = []
    pending: dict[int, ExperimentRecord] = {}
    faults: dict[str, str] = {}
    for number in numbers:
        name, plan_name = file_names(number)
        try:
            record = _read_record(folder / name, number)
        except ArtifactError as error:
            faults[name] = error.message
            continue
        if plan_name not in names:
            pending[number] = record
            continue
        try:
            lines = _plan_lines(_read_plan(folder / plan_name, record), plan_name)
        except ArtifactError as error:
            faults[plan_name] = error.message
            continue
        digests = {line["case_id"]: sha256 for line, sha256 in lines}
        whole.append(Revision(number, folder / name, folder / plan_name, record, digests))
    return Scan(tuple(whole), pending, faults)


def fingerprint(folder: Path) -> object:
    """Return something that changes when a file of any revision is added, replaced or written to."""
    result = []
    for name in listing(folder):
        if _FILES.fullmatch(name):
            facts = (folder / name).lstat()
            result.append((name, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns))
    return tuple(result)


def make_record(
    number: int, experiment: Mapping[str, Any], plan: bytes, identity: Mapping[str, Any]
) -> ExperimentRecord:
    """Return the envelope of revision `number`; ConfigError when the values are not plain JSON."""
    fields = {
        "schema_version": EXPERIMENT_RECORD,
        "revision": number,
        "experiment": dict(experiment),
        "experiment_digest": _digest(experiment),
        "identity": dict(identity),
        "plan_sha256": hashlib.sha256(plan).hexdigest(),
    }
    return convert({**plain(fields), "seal": _digest(fields)}, ExperimentRecord)


def plan_bytes(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """Return plan.jsonl: one canonical line per case; ConfigError for a bad or repeated case id."""
    seen: set[str] = set()
    for line in lines:
        case_id = line.get("case_id")
        if not isinstance(case_id, str) or not is_component(case_id) or case_id in seen:
            raise ConfigError(
                f"plan line with case_id {case_id!r}",
                hint="Each line needs a case_id of its own, one safe component.",
            )
        seen.add(case_id)
    try:
        return b"".join(canonical_json(line) + b"\n" for line in lines)
    except ValueError as error:
        raise ConfigError(f"the plan is not plain JSON: {error}") from None


def publish(
    writer: Writer,
    folder: Path,
    experiment: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    identity: Mapping[str, Any],
) -> Revision:
    """Return the revision with this content, publishing it if there is none. See Store.open_experiment."""
    plan = plan_bytes(lines)
    while True:
        found = scan(folder)
        if found.faults:
            name, reason = next(iter(found.faults.items()))
            raise ArtifactError(
                f"{str(folder / name)!r} cannot be trusted: {reason}",
                hint="The scores and cases beside it are not touched. Restore it from a copy, or move it and its "
                "partner (experiment.json and plan.jsonl go together) elsewhere and run again: both are written anew, "
                "and what was sealed under the same content counts again.",
            )
        _check_identity(folder, found, identity)
        number = _same(found, experiment, plan) or max(found.records, default=0) + 1
        ready = [revision for revision in found.whole if revision.number == number]
        if ready:
            return ready[0]
        name, plan_name = file_names(number)
        record = found.pending.get(number) or make_record(number, experiment, plan, identity)
        if number not in found.pending and not writer.publish_file(folder / name, pretty_json(record)):
            continue  # another process took this number: look again at what it says
        writer.publish_file(folder / plan_name, plan)  # taken: the next scan() says whether it is the same


def _same(found: Scan, experiment: Mapping[str, Any], plan: bytes) -> int | None:
    wanted = (_digest(experiment), hashlib.sha256(plan).hexdigest())
    for number, record in sorted(found.records.items()):
        if (record.experiment_digest, record.plan_sha256) == wanted:
            return number
    return None


def _check_identity(folder: Path, found: Scan, identity: Mapping[str, Any]) -> None:
    for number, record in sorted(found.records.items()):
        if _digest(record.identity) == _digest(identity):
            continue
        fields = sorted(
            name for name in {*identity, *record.identity} if identity.get(name) != record.identity.get(name)
        )
        raise ConfigError(
            f"the identity changed: {', '.join(fields)} differ from {file_names(number)[0]}",
            source=str(folder),
            path="$.identity",
            hint="Another logical problem is another experiment: use another experiment_id or --output-root.",
        )


def _read_record(path: Path, number: int) -> ExperimentRecord:
    data = read_bounded(str(path))
    try:
        document = parse_strict(data, source=path.name)
        record = convert(document, ExperimentRecord, source=path.name)
        content = {key: value for key, value in document.items() if key != "seal"}
        good = record.seal == digest(content) and pretty_json(document) == data
        good = good and record.experiment_digest == digest(record.experiment)
    except (ConfigError, ValueError) as error:
        raise ArtifactError(f"malformed: {error}") from None
    if record.schema_version != EXPERIMENT_RECORD:
        raise ArtifactError(f"schema_version {record.schema_version!r}, known is {EXPERIMENT_RECORD}")
    if not good or not is_digest(record.plan_sha256):
        raise ArtifactError("altered: its content is not what its seal says")
    if record.revision != number:
        raise ArtifactError(f"misplaced: it says revision {record.revision}")
    return record


def _read_plan(path: Path, record: ExperimentRecord) -> bytes:
    data = read_bounded(str(path), limit=MAX_PLAN)
    if hashlib.sha256(data).hexdigest() != record.plan_sha256:
        raise ArtifactError("altered: it is not the plan that its experiment file names")
    return data


def _plan_lines(data: bytes, source: str) -> list[tuple[dict[str, Any], str]]:
    result = []
    for line in data.splitlines():
        try:
            document = parse_strict(line, source=source)
        except ConfigError as error:
            raise ArtifactError(f"malformed: {error.message}") from None
        if not isinstance(document, dict) or not isinstance(document.get("case_id"), str):
            raise ArtifactError("malformed: a line without case_id")
        result.append((document, hashlib.sha256(line).hexdigest()))
    return result


def _digest(value: Any) -> str:
    try:
        return digest(value)
    except ValueError as error:
        raise ConfigError(
            f"not plain JSON: {error}",
            hint="Use strings, finite numbers, integers below 2^53, lists and objects.",
        ) from None

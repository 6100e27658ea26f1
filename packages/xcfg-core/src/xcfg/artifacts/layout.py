"""Names in the store: which components are safe, how folders are numbered, what each status must hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from xcfg.errors import ArtifactError, ConfigError
from xcfg.schema.names import Status

COMPLETE = "COMPLETE"
TEMPORARY = ".tmp-"
SCORES, CASES, ROLLOUTS, ANALYSIS = "scores", "cases", "rollouts", "analysis"
ENDED = "ended"

SCORE_FILE = "score.pt"
REQUESTED, MATERIALIZED, ACTUAL = "requested.json", "materialized.json", "actual.json"
IDENTITY, COMPARISON, FAILURE = "identity.json", "comparison.json", "failure.json"
SCORE_ROLLOUT, SCORE_TRAINING, TOKEN_DIFFS = "score_rollout.pt", "score_training.pt", "token_diffs.pt"

SCORE_PAYLOADS = (SCORE_FILE, "applications.json", "ranks.json", "operators.json", "timeline.json")
"""What every side score must hold; `worker-*.log` and more may stand beside them."""

_EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_COMPONENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SCORE_FOLDER = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,127})(?:\.r([2-9]|[1-9][0-9]{1,6}))?")
_ATTEMPT = re.compile(r"attempt-([0-9]{4}|[1-9][0-9]{4,8})")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Required:
    """Payloads of one status: all of `every`, at least one of `some`, none of `never`."""

    every: tuple[str, ...]
    some: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def faults(self, status: str, names: Iterable[str]) -> list[str]:
        """Return one sentence per payload that is missing or may not be there."""
        have = set(names)
        faults = [f"status {status} requires {name}" for name in self.every if name not in have]
        if self.some and not have.intersection(self.some):
            faults.append(f"status {status} requires one of {', '.join(self.some)}")
        return faults + [f"status {status} may not hold {name}" for name in self.never if name in have]


_JUDGED = Required(
    (REQUESTED, MATERIALIZED, ACTUAL, IDENTITY, SCORE_ROLLOUT, SCORE_TRAINING, COMPARISON, TOKEN_DIFFS),
    never=(FAILURE,),
)
_EXPLAINED = Required((REQUESTED,), some=(COMPARISON, FAILURE))
_FAILED = Required((REQUESTED, FAILURE), never=(TOKEN_DIFFS,))
_WITHOUT_NUMBERS = Required((REQUESTED,), some=(COMPARISON, FAILURE), never=(TOKEN_DIFFS,))

STATUS_PAYLOADS: dict[Status, Required] = {
    Status.PASS: _JUDGED,
    Status.MISMATCH: _JUDGED,
    Status.NOT_COMPARABLE: _EXPLAINED,
    Status.CONTROL_FAILED: _EXPLAINED,
    Status.FALLBACK: _EXPLAINED,
    Status.UNOBSERVABLE: _EXPLAINED,
    Status.INVALID_IDENTITY: _WITHOUT_NUMBERS,
    Status.INVALID_ARTIFACT: _EXPLAINED,
    Status.ZERO_ACTIVE_TOKENS: _EXPLAINED,
    Status.EMPTY_JOIN: _EXPLAINED,
    Status.UNSUPPORTED: _FAILED,
    Status.LAUNCH_FAILED: _FAILED,
    Status.TIMEOUT: _FAILED,
    Status.WORKER_FAILED: _FAILED,
    Status.MISSING_RANK: _FAILED,
    Status.CANCELLED: _FAILED,
}
"""Status -> payloads. A judged attempt holds everything; a failure says why; no identity, no drift number."""


def experiment_component(experiment_id: str) -> str:
    """Return `experiment_id` if it is one safe path component; ConfigError otherwise."""
    if not _EXPERIMENT.fullmatch(experiment_id):
        raise ConfigError(
            f"experiment_id {experiment_id!r} is not one safe path component",
            path="$.experiment_id",
            hint="Use letters, digits, '.', '_' and '-', at most 128, and begin with a letter or a digit.",
        )
    return experiment_id


def component(name: str, what: str) -> str:
    """Return `name` if it may name a folder of the store; ArtifactError, naming `what` it is, otherwise."""
    if not _COMPONENT.fullmatch(name):
        raise ArtifactError(
            f"{what} {name!r} is not one safe path component",
            hint="Use letters, digits, '_' and '-', at most 128, and begin with a letter or a digit.",
        )
    return name


def is_component(name: str) -> bool:
    """Whether `name` may be a case id or a score key."""
    return _COMPONENT.fullmatch(name) is not None


def is_payload(name: str) -> bool:
    """Whether `name` may be a file inside a sealed folder (COMPLETE itself is no payload)."""
    return name != COMPLETE and _FILE.fullmatch(name) is not None


def is_digest(text: str) -> bool:
    """Whether `text` is a SHA-256 as 64 lower-case hex digits."""
    return _SHA256.fullmatch(text) is not None


def score_folder(key: str, revision: int) -> str:
    """Return the folder name of the `revision`-th score of `key`, counted from 1."""
    return key if revision == 1 else f"{key}.r{revision}"


def split_score(folder: str) -> tuple[str, int] | None:
    """Return (key, revision) of a folder in scores/, or None when it is not one of ours."""
    match = _SCORE_FOLDER.fullmatch(folder)
    return (match.group(1), int(match.group(2) or 1)) if match else None


def attempt_folder(number: int) -> str:
    """Return the folder name of the `number`-th attempt, counted from 1."""
    return f"attempt-{number:04d}"


def attempt_number(folder: str) -> int | None:
    """Return the number of an attempt folder, or None when it is not one of ours."""
    match = _ATTEMPT.fullmatch(folder)
    return int(match.group(1)) if match else None


def copy_of(arm: str, names: Iterable[str]) -> str | None:
    """Return the file of an attempt that holds the copy of the side score of `arm`, or None.

    `score_<arm>.pt` when it is there; otherwise a rollout arm is the verdict arm, in score_rollout.pt.
    """
    have = set(names)
    if f"score_{arm}.pt" in have:
        return f"score_{arm}.pt"
    return SCORE_ROLLOUT if arm.startswith("rollout_") and SCORE_ROLLOUT in have else None

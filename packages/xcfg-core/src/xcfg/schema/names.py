"""The closed vocabularies: sides, arms, edges, tiers, lifecycles, statuses."""

from __future__ import annotations

from enum import Enum


class Side(str, Enum):
    """Which engine of the pair; `reference` is the high-precision scorer beside it."""

    ROLLOUT = "rollout"
    TRAINING = "training"
    REFERENCE = "reference"


class Arm(str, Enum):
    """One way to score the same frozen tokens (contract, section 3)."""

    TRAINING = "training"
    ROLLOUT_PREFILL = "rollout_prefill"
    ROLLOUT_DECODE = "rollout_decode"
    RECORDED = "recorded"
    REFERENCE = "reference"


class Phase(int, Enum):
    """Where a rollout_decode value came from; stored per token as int8 in the column `phase`."""

    NONE = 0
    FIRST_TOKEN = 1
    DECODE = 2
    RECOMPUTED = 3
    PREFILL = 4


class SourceClass(str, Enum):
    """What kind of difference a knob makes (RFC, drift source taxonomy)."""

    LOGICAL_LAYOUT = "logical-layout"
    ARITHMETIC = "arithmetic"
    REDUCTION = "reduction"
    REPRESENTATION = "representation"
    EXECUTION = "execution"


class Lifecycle(str, Enum):
    """The latest moment at which a knob can still be set."""

    REQUEST = "request"
    ENGINE_CONSTRUCTION = "engine-construction"
    PROCESS_START = "process-start"
    BUILD = "build"


class Target(str, Enum):
    """Which side a knob acts on."""

    ROLLOUT = "rollout"
    TRAINING = "training"
    BOTH = "both"
    KERNEL = "kernel"


class Tier(str, Enum):
    """How strictly the two sides must agree on a value."""

    IDENTICAL = "IDENTICAL"
    SEMANTIC = "SEMANTIC"
    RECORDED = "RECORDED"


class Applied(str, Enum):
    """What became of one requested knob value."""

    APPLIED = "applied"
    FALLBACK = "fallback"
    UNSUPPORTED = "unsupported"
    UNOBSERVABLE = "unobservable"
    ERROR = "error"


class EvidenceKind(str, Enum):
    """How an actual value is known; `inherent` is the one value of a knob that an engine lacks."""

    EXECUTION = "execution"
    STATE = "state"
    CONFIG = "config"
    INHERENT = "inherent"


class Exercised(str, Enum):
    """Whether the case could have shown an effect of the knob."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Role(str, Enum):
    """Why a case is in the plan: a planned case, or a control of the baseline."""

    CASE = "case"
    REPEAT = "repeat"
    FRESH = "fresh"
    SHUFFLED = "shuffled"
    COLD = "cold"
    WARM = "warm"
    AT_END = "at_end"
    REFERENCE = "reference"


class Status(str, Enum):
    """How a case ended (contract, section 6). Only PASS is a pass."""

    PASS = "PASS"  # noqa: S105 - a status, not a password
    MISMATCH = "MISMATCH"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    CONTROL_FAILED = "CONTROL_FAILED"
    INVALID_IDENTITY = "INVALID_IDENTITY"
    INVALID_ARTIFACT = "INVALID_ARTIFACT"
    ZERO_ACTIVE_TOKENS = "ZERO_ACTIVE_TOKENS"
    EMPTY_JOIN = "EMPTY_JOIN"
    UNSUPPORTED = "UNSUPPORTED"
    FALLBACK = "FALLBACK"
    UNOBSERVABLE = "UNOBSERVABLE"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    TIMEOUT = "TIMEOUT"
    WORKER_FAILED = "WORKER_FAILED"
    MISSING_RANK = "MISSING_RANK"
    CANCELLED = "CANCELLED"


class Assessment(str, Enum):
    """Whether honest rounding explains the gap; stands beside the status and never changes it."""

    EXPLAINED_BY_PRECISION = "EXPLAINED_BY_PRECISION"
    EXCESS_TRAINING = "EXCESS_TRAINING"
    EXCESS_ROLLOUT = "EXCESS_ROLLOUT"
    EXCESS_GAP = "EXCESS_GAP"
    BIASED = "BIASED"
    UNDECIDED = "UNDECIDED"
    NO_REFERENCE = "NO_REFERENCE"


LAUNCH_STATUSES = frozenset({Status.LAUNCH_FAILED, Status.TIMEOUT, Status.WORKER_FAILED, Status.MISSING_RANK})


def exit_code(statuses: list[Status], *, interrupted: bool = False) -> int:
    """Return the exit code of a run: 130, 4, 3, 1, 0 in this precedence (2 is raised earlier)."""
    if interrupted:
        return 130
    if any(status in LAUNCH_STATUSES for status in statuses):
        return 4
    if not statuses or any(status not in (Status.PASS, Status.MISMATCH) for status in statuses):
        return 3
    return 1 if Status.MISMATCH in statuses else 0

"""The document of `xcfg doctor`: what is installed, what it runs on, and what is known about two sets of arguments."""

from __future__ import annotations

from enum import Enum

from xcfg.schema._base import Record, Value
from xcfg.schema.arguments import Effect, Outcome

DOCTOR = "xcfg.doctor.v1"


class Engine(Record):
    """One installed or wanted distribution of a runtime. wanted: the requirement; version: empty when absent."""

    wanted: str
    distribution: str
    version: str
    fits: bool


class RuntimeHealth(Record):
    """One runtime. usable: all it needs is installed, and a device that it runs on is here.

    devices: what it can run on; here: those of them that this machine has. missing: each unmet requirement.
    cure: the command that brings it.
    """

    name: str
    plugin: str
    distribution: str
    version: str
    usable: bool
    engines: tuple[Engine, ...]
    sides: tuple[str, ...]
    devices: tuple[str, ...]
    here: tuple[str, ...]
    missing: tuple[str, ...] = ()
    cure: str = ""


class Absent(Record):
    """A package of the project that is not installed, or a plugin that cannot be used. cure: the command."""

    package: str
    brings: str
    reason: str
    cure: str


class Clash(Record):
    """Two things that cannot share an environment.

    installed: both are here now, so something is broken; otherwise it is a warning about a pair that was declared.
    """

    package: str
    other: str
    reason: str
    installed: bool
    source: str = ""


class Machine(Record):
    """What a score depends on beside software.

    features: those of the processor that choose kernels. memory_gib: of the machine, and of the cgroup where it is
    less. accelerators: name and driver. cuda: whether torch can use one; null: not asked, no accelerator was found.
    """

    platform: str
    python: str
    processor: str
    features: dict[str, bool]
    cores: int
    memory_gib: float | None
    accelerators: tuple[str, ...]
    torch: str
    cuda: bool | None = None
    cuda_devices: tuple[str, ...] = ()
    cuda_note: str = ""


class Verdict(str, Enum):
    """What a finding says; COUNTED are those that count as traps.

    conflict: two arguments of one side set one thing to different values.
    """

    REFUSED = "refused"
    CONFLICT = "conflict"
    IGNORED = "ignored"
    TRAP = "trap"
    ONE_SIDED = "one_sided"
    UNEQUAL = "unequal"
    UNOBSERVABLE = "unobservable"
    APPLIED = "applied"
    NO_EFFECT = "no_effect"
    NOT_RUN = "not_run"
    UNKNOWN = "unknown"


COUNTED = (
    Verdict.REFUSED,
    Verdict.CONFLICT,
    Verdict.IGNORED,
    Verdict.TRAP,
    Verdict.ONE_SIDED,
    Verdict.UNEQUAL,
    Verdict.UNOBSERVABLE,
)
"""Verdicts that make `xcfg doctor` end with 1."""
MEASURED = {outcome: Verdict(outcome.value) for outcome in Outcome}


class ConfirmingCase(Record):
    """One intervention that shows the effect: paste it into `interventions`, then call `command`.

    values: the value in question and one to compare it with; the planner drops the one that the baseline has.
    """

    path: str
    values: tuple[Value, ...]
    command: str
    side: str = ""


class Finding(Record):
    """One thing that is known about one argument.

    flag: as it was spelled. value: as it is understood. happens: in words. measured: the size, from our own rows
    with model and platform, or as the source says. confirm: how to see it where there is no case.
    """

    side: str
    flag: str
    value: str
    verdict: Verdict
    happens: str
    measured: str = ""
    effects: tuple[Effect, ...] = ()
    platform: str = ""
    runner: str = ""
    versions: dict[str, str] = {}
    source: str = ""
    case: ConfirmingCase | None = None
    confirm: str = ""


class ArgumentCheck(Record):
    """The findings about both sides' arguments. counts: verdict -> findings; every argument is in at least one."""

    rollout: str
    training: str
    platform: str
    findings: tuple[Finding, ...]
    counts: dict[str, int]


class DoctorSummary(Record):
    """`xcfg doctor --json`. arguments: null without --rollout-args and --training-args."""

    schema_version: str
    exit_code: int
    core: str
    machine: Machine
    runtimes: tuple[RuntimeHealth, ...]
    absent: tuple[Absent, ...]
    clashes: tuple[Clash, ...]
    variables: dict[str, str]
    arguments: ArgumentCheck | None = None

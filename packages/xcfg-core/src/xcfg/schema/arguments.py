"""Engine arguments: how an engine's own flags map to knobs, what became of them in a run, and known traps.

An adapter package ships one ArgumentTable: `arguments` and `traps` are written by hand, `rows` are generated from
the stored scores of finished runs (tools/gen_knob_table.py) and are never typed in.
"""

from __future__ import annotations

from enum import Enum

from xcfg.schema._base import Record, Value
from xcfg.schema.knobs import Domain

ARGUMENTS = "xcfg.engine_arguments.v1"
ROWS = "xcfg.knob_rows.v1"


class Outcome(str, Enum):
    """What an engine does with a setting on one platform.

    unobservable: it was accepted and nothing showed whether it acts. trap: it acts, and not as its name says.
    """

    APPLIED = "applied"
    NO_EFFECT = "no_effect"
    IGNORED = "ignored"
    UNOBSERVABLE = "unobservable"
    REFUSED = "refused"
    TRAP = "trap"
    NOT_RUN = "not_run"


class EngineArgument(Record):
    """One argument of an engine, as its users spell it.

    flags: spellings without leading dashes, hyphens for underscores (`kv-cache-dtype`), or an environment variable
    in capitals; a dotted one (`compilation-config.mode`) names an entry of a JSON value. switch: it takes no value.
    knob: the path of the knob it sets; empty when xcfg has none. values: spelling -> the value meant, in the table's
    words; other spellings stand for themselves. sets: what a switch sets when it is on (`--bf16`); null: true.
    group: what both sides must agree on; arguments of both tables with one group are compared.
    default: the value meant when the argument is absent; null: it depends on the model or the launcher.
    neutral: values that add nothing of this engine's own, so that no counterpart is missed.
    confirm: how to see the effect where no knob exists. domain: what the engine takes, in the table's words, where that
    is a closed list or a number; null: it is not known to be, and any value may stand.
    """

    flags: tuple[str, ...]
    switch: bool = False
    knob: str = ""
    values: dict[str, Value] = {}
    sets: Value = None
    group: str = ""
    default: Value = None
    neutral: tuple[Value, ...] = ()
    summary: str = ""
    confirm: str = ""
    domain: Domain | None = None


class Condition(Record):
    """A flag that was given with one of `values` (empty: with any) and none of `excluded`."""

    flag: str
    values: tuple[Value, ...] = ()
    excluded: tuple[Value, ...] = ()


class Trap(Record):
    """Something known about a combination of arguments of one engine; never about a single run of ours.

    when: all must hold; the first one is the flag that is blamed. platforms: empty means every one. runners: the
    engine's runner classes of which it is true (v1, v2); empty means all. effect: the measured size, with model and
    platform. source: where it was measured or reported. confirm: how to see it.
    """

    name: str
    when: tuple[Condition, ...]
    outcome: Outcome
    happens: str
    platforms: tuple[str, ...] = ()
    runners: tuple[str, ...] = ()
    versions: str = ""
    effect: str = ""
    source: str = ""
    confirm: str = ""


class Effect(Record):
    """|case - baseline| of one arm over its active tokens, in nats; float64 from the stored values.

    differing: tokens whose bits differ. case: key of the score that was compared; baseline: that of the other.
    """

    arm: str
    tokens: int
    differing: int
    mean_abs: float
    max_abs: float
    case: str = ""
    baseline: str = ""


class ArgumentRow(Record):
    """What became of one value of one knob, as a sealed case shows it.

    baseline: the value it is compared with. device: processor or accelerator, no host name. dtype: compute dtype of
    the baseline's arm. coupled: paths that changed unasked; unseen: paths that the case could not read back.
    exercised: whether the case or its baseline could have shown an effect.
    experiment, case, attempt: the evidence. note: the reason that the case or the record gave.
    """

    side: str
    knob: str
    value: Value
    baseline: Value
    platform: str
    outcome: Outcome
    runner: str = ""
    dtype: str = ""
    device: str = ""
    model: str = ""
    effects: tuple[Effect, ...] = ()
    exercised: str = ""
    coupled: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    status: str = ""
    note: str = ""
    experiment: str = ""
    case: str = ""
    attempt: str = ""
    label: str = ""

    @property
    def max_abs(self) -> float | None:
        """The largest |d| of all arms; None without a score."""
        return max((effect.max_abs for effect in self.effects), default=None)


class ArgumentTable(Record):
    """All that a runtime says about its engine's arguments."""

    arguments: tuple[EngineArgument, ...] = ()
    traps: tuple[Trap, ...] = ()
    rows: tuple[ArgumentRow, ...] = ()


class HandWritten(Record):
    """The file arguments.json of an adapter package."""

    schema_version: str
    arguments: tuple[EngineArgument, ...] = ()
    traps: tuple[Trap, ...] = ()


class Generated(Record):
    """The file table.json of an adapter package."""

    schema_version: str
    rows: tuple[ArgumentRow, ...] = ()

"""What a knob is: the declaration that a plugin returns and that planning, running and analysis read."""

from __future__ import annotations

import json
import math

from xcfg.schema._base import Record, Value
from xcfg.schema.names import Lifecycle, SourceClass, Target, Tier


class Choice(Record, tag="choice", tag_field="kind"):
    """A closed list of values."""

    values: tuple[bool | int | float | str, ...]


class IntRange(Record, tag="int", tag_field="kind"):
    """An integer within inclusive bounds; a bool is no int."""

    minimum: int = 1
    maximum: int | None = None


class FloatRange(Record, tag="float", tag_field="kind"):
    """A finite number within inclusive bounds; an int is taken as the float it equals, a bool is no number."""

    minimum: float | None = None
    maximum: float | None = None

    def admits(self, value: object) -> bool:
        """Whether `value` is a number of this range."""
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        try:
            number = float(value)
        except OverflowError:  # an int that no float reaches
            return False
        low = self.minimum is None or number >= self.minimum
        return math.isfinite(number) and low and (self.maximum is None or number <= self.maximum)

    def describe(self) -> str:
        """Return the range in words."""
        low = "" if self.minimum is None else f" from {self.minimum:g}"
        return f"finite number{low}" + ("" if self.maximum is None else f" to {self.maximum:g}")


class Text(Record, tag="text", tag_field="kind"):
    """Any non-empty string that matches `pattern` in full."""

    pattern: str = r"[^\s].*"


Domain = Choice | IntRange | FloatRange | Text


class Constraint(Record):
    """A cell that matches all of `when` and not all of `require` is filtered from the plan, with `code`.

    Both map a knob path to the values that match. An empty `require` forbids what `when` matches.
    """

    code: str
    when: dict[str, tuple[Value, ...]]
    require: dict[str, tuple[Value, ...]] = {}
    reason: str = ""


class AlignSpec(Record):
    """How the knob is made equal on both sides.

    `group` names the quantity; the member of the group on the other side has the same group.
    `canonical` maps this knob's values (as JSON text) to the group's spelling; identity when absent.
    `reference` is this knob's value in the reference configuration.
    The ranks are the RFC's keys 1, 4 and 5 (smaller is less): semantic scope, intrusion, maintenance.
    """

    group: str
    canonical: dict[str, str] = {}
    reference: Value = None
    scope: int = 1
    intrusion: int = 1
    maintenance: int = 1

    def spelling(self, value: Value) -> str | None:
        """Return how the group spells a value of this knob; None where its map has no such value."""
        text = json.dumps(value)
        if self.canonical:
            return self.canonical.get(text)
        return value if isinstance(value, str) else text


class KnobDefinition(Record):
    """One controllable source of variation.

    name: stable dotted path. capability, apply, provenance: one sentence each, for `xcfg knobs show`: how
    support is proved, how the value is applied, how the actual value is read back.
    distributed: the value also belongs to the distributed-context fingerprint.
    derived: set only through other fields of the experiment (logp.backend beside an operator mapping).
    option_of: the semantic operator whose backend has this knob's last word as an option. At its default the knob asks
    nothing of a backend without that option; any other value is unsupported there.
    """

    name: str
    summary: str
    source_class: SourceClass
    lifecycle: Lifecycle
    targets: Target
    domain: Domain
    tier: Tier = Tier.RECORDED
    aliases: dict[str, Value] = {}
    capability: str = ""
    constraints: tuple[Constraint, ...] = ()
    apply: str = ""
    provenance: str = ""
    critical: bool = True
    distributed: bool = False
    derived: bool = False
    default: Value = None
    align: AlignSpec | None = None
    not_alignable: str = ""
    option_of: str = ""

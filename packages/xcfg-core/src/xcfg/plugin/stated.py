"""What an operator states of its calls (protocols.StatedLogprob), added up over one score, and how a runtime reads it.

A runtime whose workers are other processes brings a Statements back as plain data; the reading is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xcfg.plugin.readback import Reading, execution, state
from xcfg.schema._base import Value
from xcfg.schema.names import Exercised
from xcfg.schema.runtime import Evidence

OPTIONS = "logprob."
"""What the path of an option begins with, of the injected `selected_logprob` or `linear_selected_logprob`."""
PLAIN = (bool, int, float, str, type(None))
NOT_SHOWN = {
    "backward": "no backward of the operator ran here, and nothing else shows the option; "
    "leave the knob out, or score with a runtime whose training side looks at a gradient",
    "entropy": "no column `entropy` was asked for, and nothing else shows the option; run with --columns entropy",
}
"""What alone can show an option (protocols.TrainedLogprob) -> why it was not shown."""


@dataclass
class Statements:
    """Over the calls of a score, each thing once, in the order in which it was first stated.

    options: name of an option -> the values that calls did. vocabularies: what was summed over, as StatedLogprob has
    it. chains: the transforms. moved: rows whose value is of another id than the one that was handed over. shown_by:
    option -> what alone can show it, for options that no log probability depends on. by_rows: options that only enough
    rows can show, of which the calls with the most rows stand for the score; rows: how many those had. calls: how many
    were looked at, also of a backend that states nothing. acts_where: option -> what it needs to act, in words.
    """

    options: dict[str, list[Value]] = field(default_factory=dict)
    vocabularies: list[Any] = field(default_factory=list)
    chains: list[tuple[str, ...]] = field(default_factory=list)
    moved: int = 0
    shown_by: dict[str, str] = field(default_factory=dict)
    by_rows: list[str] = field(default_factory=list)
    rows: int = -1
    calls: int = 0
    acts_where: dict[str, str] = field(default_factory=dict)

    def take(self, function: Any, handed: Any) -> None:
        """Add what `function` states of the call that it has just finished; handed: int64 [N], the ids of that call."""
        self.calls += 1
        said = stated_of(function)
        options = said.get("options")
        stated = {str(name): [_plain(value)] for name, value in (options if isinstance(options, dict) else {}).items()}
        self._take(stated, said.get("by_rows", ()), int(said.get("rows", -1)))
        self.shown_by.update(shown_by(function))
        self.acts_where.update(getattr(function, "acts_where", {}))
        if "vocabulary" in said:
            _once(self.vocabularies, _plain(said["vocabulary"]))
        _once(self.chains, declared_chain(function))
        scored = scored_ids(function, handed)
        if scored is not handed:
            self.moved += len(handed) if scored.shape != handed.shape else int((scored != handed).sum())

    def _take(self, options: Mapping[str, Sequence[Value]], by_rows: Iterable[str], rows: int) -> None:
        """Add options of calls with `rows` rows; of those in `by_rows` only where no call with more rows was taken."""
        names = {str(name) for name in by_rows}
        if names and rows > self.rows:
            self.options = {name: values for name, values in self.options.items() if name not in names}
            self.rows = rows
        self.by_rows += sorted(names.difference(self.by_rows))
        self.add_options({name: item for name, item in options.items() if rows >= self.rows or name not in names})

    def take_options(self, options: Any) -> None:
        """Add options that ran, name -> value; what is no dict states nothing."""
        if isinstance(options, dict):
            self.add_options({str(name): [_plain(value)] for name, value in options.items()})

    def add_options(self, options: Mapping[str, Sequence[Value]]) -> None:
        """Add options that ran, name -> values, whatever the rows of the calls that did them."""
        for name, values in options.items():
            for value in values:
                _once(self.options.setdefault(name, []), value)

    def add(self, other: Statements) -> None:
        """Add what other calls stated."""
        self._take(other.options, other.by_rows, other.rows)
        for vocabulary in other.vocabularies:
            _once(self.vocabularies, vocabulary)
        for chain in other.chains:
            _once(self.chains, chain)
        self.moved += other.moved
        self.calls += other.calls
        self.shown_by.update(other.shown_by)
        self.acts_where.update(other.acts_where)

    @property
    def ran(self) -> dict[str, Value]:
        """Option -> the value that ran; of several, text that names them all and equals no value of anybody."""
        return {name: _shown(values) for name, values in self.options.items()}

    @property
    def transforms(self) -> tuple[str, ...]:
        """The one chain of all calls; of several, one entry that equals no chain of anybody."""
        if len(self.chains) <= 1:
            return self.chains[0] if self.chains else ()
        return (f"several: {' | '.join(', '.join(chain) or 'none' for chain in self.chains)}",)

    @property
    def vocabulary(self) -> Any:
        """What all calls summed over; of several, a policy that is nobody's. None where nothing was stated."""
        if len(self.vocabularies) <= 1:
            return self.vocabularies[0] if self.vocabularies else None
        return {"policy": f"several: {' | '.join(map(repr, self.vocabularies))}"}

    def plain(self) -> dict[str, Any]:
        """Return plain lists, dicts, text and numbers, for `of` in another process."""
        chains = [list(chain) for chain in self.chains]
        return {
            "options": self.options,
            "vocabularies": self.vocabularies,
            "chains": chains,
            "moved": self.moved,
            "shown_by": self.shown_by,
            "by_rows": self.by_rows,
            "rows": self.rows,
            "calls": self.calls,
            "acts_where": self.acts_where,
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Statements:
        """Return what `plain` made plain."""
        return cls(
            options={str(name): list(values) for name, values in plain["options"].items()},
            vocabularies=list(plain["vocabularies"]),
            chains=[tuple(chain) for chain in plain["chains"]],
            moved=int(plain["moved"]),
            shown_by=dict(plain["shown_by"]),
            by_rows=list(plain["by_rows"]),
            rows=int(plain["rows"]),
            calls=int(plain["calls"]),
            acts_where=dict(plain["acts_where"]),
        )

    def mechanism(self) -> dict[str, Any]:
        """Return what a report says of it: `logprob` {"options", "vocabulary"} and `vocabulary`; empty for nothing."""
        if not self.options and not self.vocabularies:
            return {}
        vocabulary = {"vocabulary": self.vocabulary} if self.vocabularies else {}
        return {"logprob": {"options": self.ran, **vocabulary}, **vocabulary}


def stated_of(function: Any) -> dict[str, Any]:
    """Return what a backend states of its last call; empty for one that states nothing."""
    said = getattr(function, "stated", None)
    return said if isinstance(said, dict) else {}


def shown_by(function: Any) -> Mapping[str, str]:
    """Return option -> what alone can show it (protocols.TrainedLogprob); empty for a backend without such options."""
    said = getattr(function, "shown_by", None)
    return said if isinstance(said, Mapping) else {}


def declared_chain(function: Any) -> tuple[str, ...]:
    """Return the transforms that a backend says it does to logits."""
    return tuple(str(item) for item in getattr(function, "transforms", ()))


def scored_ids(function: Any, handed: Any) -> Any:
    """Return the ids [N] whose values the last call returned: those handed over unless the backend says otherwise."""
    scored = getattr(function, "scored_ids", None)
    return handed if scored is None else scored


def option_reading(
    path: str, backend: str, built: Mapping[str, Value], statements: Statements, calls: int | None
) -> Reading:
    """Return what became of an option: the one value that every call did, none where they state nothing of it.

    built: the options that the live operator was built with; they stand for it until the first call. calls: of it in
    the score; None where none was counted. An option that something else than a call shows is not what ran until that
    has run.
    """
    name = path.rpartition(".")[2]
    if name not in built:
        return Reading(None, None, (), reason=f"{backend!r} was built without the option {name!r}")
    given, did = built[name], statements.options.get(name, [])
    exercised = Exercised.UNKNOWN if calls is None else Exercised.YES if calls else Exercised.NO
    evidence: tuple[Evidence, ...] = (state("options of the injected operator", f"{name}={given!r}"),)
    place = statements.shown_by.get(name, "")
    if not did and place:
        reason = NOT_SHOWN.get(place, f"nothing but {place} shows the option, and it did not run")
        return Reading(given, None, evidence, exercised=Exercised.NO, reason=reason)
    if not did and statements.options:
        reason = f"{backend!r} states what its calls did, and nothing of {name!r}: no call showed it"
        return Reading(given, None, evidence, exercised=exercised, reason=reason)
    if not did and statements.calls:
        reason = f"{backend!r} states nothing of its calls, so nothing shows that they did {name}={given!r}"
        return Reading(given, None, evidence, exercised=exercised, reason=reason)
    if not did:
        return Reading(given, given, evidence, exercised=exercised)
    ran = ", ".join(f"{name}={value!r}" for value in did)
    evidence = (execution("calls of the injected operator", ran), *evidence)
    if len(did) > 1:
        return Reading(given, None, evidence, exercised=exercised, reason=f"its calls do not agree: {ran}")
    same = type(did[0]) is type(given) and did[0] == given
    needs = f"; {statements.acts_where[name]}" if name in statements.acts_where else ""
    reason = "" if same else f"the operator was built with {name}={given!r} and its calls did {ran}{needs}"
    return Reading(given, did[0], evidence, exercised=exercised, reason=reason)


def _once(found: list[Any], item: Any) -> None:
    """Append what is not there yet; 1 is not True."""
    if not any(type(one) is type(item) and one == item for one in found):
        found.append(item)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if type(value) in PLAIN else repr(value)


def _shown(values: list[Value]) -> Value:
    return values[0] if len(values) == 1 else f"several: {' | '.join(map(repr, values))}"

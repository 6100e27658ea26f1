"""Knob paths and values: the allowlist, aliases, domains and strict types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xcfg.errors import ConfigError, UnknownNameError, did_you_mean
from xcfg.plugin.builtin.knobs import LOGP_BACKEND, POLICY_ALIASES, V1_PATHS
from xcfg.schema._base import Value
from xcfg.schema.codec import canonical_json
from xcfg.schema.experiment import V1, V2
from xcfg.schema.knobs import Choice, FloatRange, IntRange, KnobDefinition
from xcfg.schema.names import Target
from xcfg.schema.operators import OperatorChoice

SIDES = ("rollout", "training")
OPERATORS = "operators."
DERIVED_PATHS = {
    "logp.tp_layout": "it follows from the engines' vocabulary shards, and is recorded with every score",
}
"""Paths that are named in documents only to say that nobody sets them."""


def same(first: Any, second: Any) -> bool:
    """Whether two knob values are one; `True` is not 1."""
    return type(first) is type(second) and bool(first == second)


def same_choice(first: Any, second: Any) -> bool:
    """Whether two operator choices are one, as a case id would say."""
    return first is second or canonical_json(first) == canonical_json(second)


def show(value: Any) -> str:
    """Return a value as labels show it: text bare, an operator by its id, all else as JSON."""
    if isinstance(value, OperatorChoice):
        return value.backend + (json.dumps(value.options, sort_keys=True) if value.options else "")
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def split_key(key: str) -> tuple[str, str | None]:
    """Return `batch.size@rollout` as (`batch.size`, `rollout`), and `batch.size` with None."""
    path, at, side = key.partition("@")
    return path, side if at else None


def normalise_value(knob: KnobDefinition, value: Any, *, source: str = "", where: str = "") -> Value:
    """Return `value` in its canonical spelling; ConfigError names what the domain has.

    Strict types: a bool is no int, a float is no int, and no text is read as a number. Where a float is declared an
    int becomes one, and -0.0 becomes 0.0, since a case id spells both alike.
    """
    if isinstance(value, str) and value in knob.aliases:
        return knob.aliases[value]
    domain = knob.domain
    if isinstance(domain, Choice):
        for item in domain.values:
            if same(item, value) or (type(item) is float and type(value) is int and item == value):
                return item
        available = ", ".join(show(item) for item in domain.values)
        hint = f"Available: {available}."
        if isinstance(value, str):
            spellings = [item for item in domain.values if isinstance(item, str)] + list(knob.aliases)
            near = did_you_mean(value, spellings)
            hint = f"{near} {hint}" if near.startswith("Did") else hint
    elif isinstance(domain, IntRange):
        above = domain.maximum is None or (type(value) is int and value <= domain.maximum)
        if type(value) is int and value >= domain.minimum and above:
            return value
        upper = "" if domain.maximum is None else f" to {domain.maximum}"
        hint = f"Give an integer from {domain.minimum}{upper}; a bool is no integer."
    elif isinstance(domain, FloatRange):
        if domain.admits(value) and isinstance(value, (int, float)):
            return float(value) + 0.0
        hint = f"Give a {domain.describe()}; a bool is no number."
    else:
        if isinstance(value, str) and re.fullmatch(domain.pattern, value):
            return value
        hint = f"{knob.summary} As a pattern: {domain.pattern!r}."
    raise ConfigError(
        f"UNSUPPORTED_VALUE: {value!r} is no value of {knob.name!r}", source=source, path=where, hint=hint
    )


def normalise_choice(choice: OperatorChoice) -> OperatorChoice:
    """Return the choice with the spellings of the production policy made one; other ids stay."""
    backend = POLICY_ALIASES.get(choice.backend, choice.backend)
    return OperatorChoice(backend=str(backend), options=choice.options)


def as_choice(value: Any) -> OperatorChoice:
    """Return an operator level (an id, {backend, options}, or a choice) as a normalised OperatorChoice."""
    if isinstance(value, OperatorChoice):
        return normalise_choice(value)
    if isinstance(value, str):
        return normalise_choice(OperatorChoice(backend=value))
    return normalise_choice(OperatorChoice(backend=value["backend"], options=value.get("options", {})))


@dataclass(frozen=True)
class Catalogue:
    """The knobs that one experiment may name.

    knobs: what the active plugins declare. providers: prefix of a path -> package that would bring it.
    version: schema_version of the experiment; a v1 file may name the ten knobs only.
    """

    knobs: Mapping[str, KnobDefinition]
    providers: Mapping[str, str]
    version: str
    source: str

    def knob(self, path: str, where: str) -> KnobDefinition:
        """Return the declaration of `path`; UnknownNameError or ConfigError says why there is none."""
        if path in self.knobs:
            if self.version == V1 and path not in V1_PATHS:
                raise ConfigError(
                    f"UNSUPPORTED_PATH: {path!r} is not one of the ten knobs of v1",
                    source=self.source,
                    path=where,
                    hint=f"Use schema_version {V2!r}, or one of: {', '.join(V1_PATHS)}.",
                )
            return self.knobs[path]
        if path in DERIVED_PATHS:
            raise ConfigError(
                f"DERIVED_KNOB: {path!r} cannot be set",
                source=self.source,
                path=where,
                hint=f"Remove it: {DERIVED_PATHS[path]}.",
            )
        raise self.unknown(path, where)

    def unknown(self, path: str, where: str) -> UnknownNameError:
        """Return the error for a path that nobody declares, with the nearest and the package that has it."""
        hints = [did_you_mean(path, V1_PATHS if self.version == V1 else self.knobs)]
        prefixes = [prefix for prefix in self.providers if path.startswith(prefix)]
        if prefixes:
            package = self.providers[max(prefixes, key=len)]
            hints.append(f"Such knobs come with the package {package!r}; `xcfg plugins list` shows what is active.")
        if path.startswith(OPERATORS):
            hints.append("Operators stand in the field `operators`, in `fixed` or, in v2, in `interventions`.")
        place = ": ".join(part for part in (self.source, where) if part)
        message = f"UNSUPPORTED_PATH: no active plugin declares the knob {path!r}"
        return UnknownNameError(
            f"{place}: {message}" if place else message, hint=" ".join(part for part in hints if part)
        )

    def keyed(self, key: str, where: str) -> tuple[KnobDefinition, str | None]:
        """Return the declaration and the side of `path` or, where the knob has two sides, `path@side`."""
        path, side = split_key(key)
        knob = self.knob(path, where)
        if knob.derived and path != LOGP_BACKEND:
            raise ConfigError(
                f"DERIVED_KNOB: {path!r} cannot be set",
                source=self.source,
                path=where,
                hint="It follows from other fields of the experiment; `xcfg knobs show` names them.",
            )
        if side is not None:
            self.check_side(knob, side, where)
        return knob, side

    def check_side(self, knob: KnobDefinition, side: str, where: str) -> None:
        """Refuse a side that does not exist, or that the knob does not have."""
        if side not in SIDES:
            raise ConfigError(
                f"INVALID_PATH: {side!r} is no side",
                source=self.source,
                path=where,
                hint="rollout or training.",
            )
        if not two_sided(knob):
            raise ConfigError(
                f"INVALID_PATH: {knob.name!r} acts on the {knob.targets.value} side only",
                source=self.source,
                path=where,
                hint=f"Leave the side away: {knob.name!r}.",
            )

    def value(self, knob: KnobDefinition, value: Any, where: str) -> Value:
        """As normalise_value, with this experiment's file in the error."""
        return normalise_value(knob, value, source=self.source, where=where)


def two_sided(knob: KnobDefinition) -> bool:
    """Whether each side can have its own value of the knob."""
    return knob.targets in (Target.BOTH, Target.KERNEL)

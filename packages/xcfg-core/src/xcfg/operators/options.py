"""Options of a backend: checked against their domains, completed with their defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from xcfg.errors import did_you_mean
from xcfg.schema.knobs import Choice, Domain, FloatRange, IntRange
from xcfg.schema.operators import OptionDefinition


def admits(domain: Domain, value: Any) -> bool:
    """Return whether `value` lies in `domain`, with its exact type: True is not 1, and 1 is not 1.0.

    A FloatRange alone also takes ints, which `complete` makes floats.
    """
    if isinstance(domain, Choice):
        return any(type(value) is type(member) and value == member for member in domain.values)
    if isinstance(domain, IntRange):
        if type(value) is not int or value < domain.minimum:
            return False
        return domain.maximum is None or value <= domain.maximum
    if isinstance(domain, FloatRange):
        return domain.admits(value)
    return isinstance(value, str) and re.fullmatch(domain.pattern, value) is not None


def describe(domain: Domain) -> str:
    """Return the domain in words, for a message."""
    if isinstance(domain, Choice):
        return "one of " + ", ".join(repr(member) for member in domain.values)
    if isinstance(domain, IntRange):
        upper = "" if domain.maximum is None else f" and at most {domain.maximum}"
        return f"an integer of at least {domain.minimum}{upper}"
    if isinstance(domain, FloatRange):
        return f"a {domain.describe()}"
    return f"text that matches {domain.pattern!r}"


def option_faults(definitions: tuple[OptionDefinition, ...], given: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the given options, one sentence each; empty when they can be used."""
    known = {definition.name: definition for definition in definitions}
    faults = []
    for name, value in given.items():
        if name not in known:
            nearest = did_you_mean(name, known) or "It has no options."
            faults.append(f"the option {name!r} is not declared. {nearest}")
        elif not admits(known[name].domain, value):
            faults.append(f"the option {name!r} is {value!r}, not {describe(known[name].domain)}")
    return faults


def complete(definitions: tuple[OptionDefinition, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options by name: the given ones, and the defaults of the others where they have one.

    The binding names every value that the factory gets, so that a changed default changes the binding.
    """
    values = {item.name: item.default for item in definitions if item.default is not None}
    floats = {item.name for item in definitions if isinstance(item.domain, FloatRange)}
    merged = sorted({**values, **given}.items())
    return {name: float(value) if name in floats and type(value) is int else value for name, value in merged}

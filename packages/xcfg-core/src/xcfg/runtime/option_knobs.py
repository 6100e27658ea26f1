"""Knobs that are options of an operator's backend: which of them one side is asked for, and where they go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xcfg.schema._base import Value
from xcfg.schema.codec import evolve
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.operators import OperatorBackendDescriptor, OperatorChoice
from xcfg.schema.runtime import RuntimeDescriptor


def option_name(path: str) -> str:
    """Return the option that a knob sets: its last word."""
    return path.rpartition(".")[2]


def asked_options(
    knobs: Mapping[str, Value],
    definitions: Mapping[str, KnobDefinition],
    operation: str,
    backend: OperatorBackendDescriptor | None,
) -> dict[str, Value]:
    """Return path -> value of the options of `operation` that its backend is asked for.

    One at its default is left out where the backend does not have it; backend None is one that nobody knows, which its
    resolution refuses.
    """
    has = {item.name for item in backend.options} if backend is not None else set()
    return {
        path: value
        for path, value in knobs.items()
        if definitions[path].option_of == operation and (option_name(path) in has or value != definitions[path].default)
    }


def with_options(choice: OperatorChoice, asked: Mapping[str, Value]) -> OperatorChoice:
    """Return the choice with the options that knobs ask for; what the choice names itself stays where both agree."""
    return evolve(choice, options={**choice.options, **{option_name(path): value for path, value in asked.items()}})


def option_conflicts(choice: OperatorChoice, asked: Mapping[str, Value]) -> dict[str, str]:
    """Return path -> reason for every option that the choice names with another value than the knob."""
    return {
        path: f"the knob asks for {value!r}, and the operator is chosen with {name}={choice.options[name]!r}"
        for path, value in asked.items()
        if (name := option_name(path)) in choice.options and choice.options[name] != value
    }


def not_injected(
    knobs: Mapping[str, Value], definitions: Mapping[str, KnobDefinition], descriptor: RuntimeDescriptor
) -> dict[str, str]:
    """Return path -> reason for options of an operator that the runtime does not inject, unless at their default."""
    return {
        path: f"it is an option of {definitions[path].option_of}, which {descriptor.name!r} does not inject"
        for path, value in knobs.items()
        if definitions[path].option_of
        and definitions[path].option_of not in descriptor.operators
        and value != definitions[path].default
    }


def without_choice(
    knobs: Mapping[str, Value],
    definitions: Mapping[str, KnobDefinition],
    descriptor: RuntimeDescriptor,
    chosen: Iterable[str],
) -> dict[str, str]:
    """Return path -> reason for options of an operator that the runtime injects and that has no choice in the case.

    chosen: the operators that the case has a choice for. At its default an option asks for nothing there.
    """
    names = set(chosen)
    return {
        path: f"it is an option of {operation}, and no backend is chosen: the experiment has no operators.{operation}"
        for path, value in knobs.items()
        if (operation := definitions[path].option_of) in descriptor.operators
        and operation not in names
        and value != definitions[path].default
    }

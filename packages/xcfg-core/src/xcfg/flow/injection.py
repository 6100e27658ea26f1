"""Whether a runtime runs an operator backend at all: it injects the operation, or its engine runs its own."""

from __future__ import annotations

from xcfg.errors import did_you_mean
from xcfg.schema.operators import ResolutionDecision
from xcfg.schema.runtime import RuntimeDescriptor

ENGINES_OWN = ("native", "production")
"""Choices that an engine into which nothing can be injected honours by running what it always runs."""


def injection(descriptor: RuntimeDescriptor, operation: str, backend: str) -> ResolutionDecision | None:
    """Return the decision about an operation that the runtime does not inject; None where it injects it.

    ok: the choice asks for the engine's own, which runs without being injected.
    """
    if operation in descriptor.operators:
        return None
    told = f"the runtime {descriptor.name!r} does not inject {operation}"
    if backend in ENGINES_OWN:
        return ResolutionDecision(check="injection", ok=True, detail=f"{told}: its engine runs its own")
    near = did_you_mean(operation, descriptor.operators) or "It injects no operator."
    return ResolutionDecision(check="injection", ok=False, detail=f"{told}; {near}")
